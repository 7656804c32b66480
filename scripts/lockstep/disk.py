"""Refuse work that the disk cannot hold, before it starts."""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.console import megabytes
from lockstep.errors import LockstepError


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write where `path` is or will be made."""
    there = path
    while not there.exists():
        there = there.parent
    figures = os.statvfs(there)
    return figures.f_bavail * figures.f_frsize


def require_disk(path: Path, bytes_needed: int, what_for: str) -> None:
    """Raise LockstepError unless `bytes_needed` bytes are free where `path` is or will be made.

    what_for names the work in the message ("the private engine"). Both figures are given in decimal megabytes.
    """
    there = free_bytes(path)
    if there < bytes_needed:
        raise LockstepError(
            f"{what_for} needs {megabytes(bytes_needed)} MB of disk and {megabytes(there)} MB are free",
            where=str(path),
            fix="free some space (`make engine-clean` drops all build caches), or set LOCKSTEP_STATE to a larger disk",
        )
