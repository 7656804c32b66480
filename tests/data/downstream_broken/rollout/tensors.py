"""Which tensors may be sent as they are."""

import torch


def is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and all(name is None for name in tensor.names)


def placeholder(rows: int) -> bool:
    made = torch.empty(rows, 4)
    return made.has_names()
