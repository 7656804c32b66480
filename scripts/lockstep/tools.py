"""The programs that are installed beside this one, by hash, in the same virtual environment."""

from __future__ import annotations

import sys
from pathlib import Path

from lockstep.errors import LockstepError


def _beside(name: str) -> Path:
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise LockstepError(
            f"{name} is missing from the virtual environment", where=str(path.parent), fix="run `make setup`"
        )
    return path


def uv_program() -> Path:
    """Return uv of this virtual environment, never one of the machine: its version decides what a lock says."""
    return _beside("uv")
