"""An OpenAI-like answer made by hand."""

from vllm.entrypoints.openai.engine.protocol import ErrorResponse, UsageInfo


def usage(prompt: int, completion: int) -> UsageInfo:
    return UsageInfo(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


def is_error(answer: object) -> bool:
    return isinstance(answer, ErrorResponse)
