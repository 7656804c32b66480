"""An OpenAI-like answer made by hand."""

from vllm.entrypoints.serve.engine.protocol import ErrorResponse, UsageInfo


def usage(prompt: int, completion: int) -> UsageInfo:
    return UsageInfo(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        completion_tokens_details=None,
    )


def is_error(answer: object) -> bool:
    return isinstance(answer, ErrorResponse)
