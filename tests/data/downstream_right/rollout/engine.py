"""The engine's settings."""

from vllm import LLM
from vllm.engine.arg_utils import AsyncEngineArgs


def arguments(model: str) -> AsyncEngineArgs:
    return AsyncEngineArgs(model=model, enable_sleep_mode=True, mm_device_do_normalize=False)


def offline(model: str) -> LLM:
    return LLM(model=model, max_num_batched_tokens=2048, mm_device_do_normalize=False)
