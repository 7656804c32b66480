"""Which tensors may be sent as they are."""

import torch


def is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous()


def placeholder(rows: int) -> bool:
    made = torch.empty(rows, 4)
    return hasattr(made, "has_names") and made.has_names()
