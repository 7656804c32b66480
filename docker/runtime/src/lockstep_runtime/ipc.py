"""Let torch 2.11 open the CUDA IPC handles that torch 2.13 writes.

A handle is a version byte, a kind byte and a payload; a raw handle of CUDA's own 64 bytes has no header. Version 3,
which torch 2.13 writes, changed kind `e` (expandable segments) alone: the payload of kind `c` (cudaMalloc) is byte for
byte that of version 2, but torch 2.11 refuses by the version before it looks at the kind.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

KNOWN = 2
"""The highest handle version that the patched torch reads."""

_MALLOC = ord("c")
_EXPANDABLE = ord("e")
_RAW = 64  # sizeof(cudaIpcMemHandle_t), cuda_runtime_api.h
_HEADER = bytes([KNOWN])

ADVICE = (
    "this CUDA IPC handle is of an expandable segment and of version {version}, which torch {torch} cannot open: its "
    "format changed in torch 2.13. Switch expandable segments off in the process that sends it (the trainer): remove "
    "expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF"
)


def rewrite(handle: bytes) -> bytes:
    """Return the handle as a torch that knows version KNOWN reads it; all but newer `c` handles as they are."""
    if len(handle) == _RAW or len(handle) < 2 or handle[0] <= KNOWN or handle[1] != _MALLOC:
        return handle
    return _HEADER + handle[1:]


def unreadable(handle: bytes) -> bool:
    """Say whether the handle is of an expandable segment and newer than version KNOWN, so that nothing can open it."""
    return len(handle) != _RAW and len(handle) >= 2 and handle[0] > KNOWN and handle[1] == _EXPANDABLE


def on_torch(torch: ModuleType) -> str:
    """Cover the constructor of a storage from a shared handle, in torch 2.11 only; return what was done.

    torch.UntypedStorage._new_shared_cuda is where every consumer passes: torch.multiprocessing's rebuild_cuda_tensor,
    TypedStorage, and whatever wraps or replaces those. The rule looks at the handle alone, never at who asks.
    """
    if line(torch.__version__) != (2, 11):
        return f"not needed: torch {torch.__version__} is not of the 2.11 line"
    done = f"active: torch {torch.__version__} opens cudaMalloc handles of torch 2.13"
    storage = torch.UntypedStorage
    original = storage._new_shared_cuda
    if getattr(original, "lockstep_runtime", False):
        return done

    def new_shared_cuda(device: Any, handle: Any, *rest: Any) -> Any:
        # What is no handle at all is left to torch's own check of its arguments.
        if not isinstance(handle, bytes):
            return original(device, handle, *rest)
        try:
            return original(device, rewrite(handle), *rest)
        except RuntimeError as error:
            if not unreadable(handle):
                raise
            raise RuntimeError(ADVICE.format(version=handle[0], torch=torch.__version__)) from error

    new_shared_cuda.lockstep_runtime = True  # type: ignore[attr-defined]
    storage._new_shared_cuda = staticmethod(new_shared_cuda)
    return done


def line(version: str) -> tuple[int, int]:
    """Return the torch line of a version: its first two numbers."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
