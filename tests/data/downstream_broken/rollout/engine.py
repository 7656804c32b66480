"""The engine's settings."""

from vllm import LLM
from vllm.engine.arg_utils import AsyncEngineArgs


def arguments(model: str) -> AsyncEngineArgs:
    return AsyncEngineArgs(model=model, enable_sleep_mode=True)


def offline(model: str) -> LLM:
    return LLM(model=model, max_num_partial_prefills=2, mm_device_do_normalize=False)
