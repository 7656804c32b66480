"""Let this machine run the other architecture's programs, by emulation."""

from __future__ import annotations

from lockstep.arch import Arch
from lockstep.errors import LockstepError


def ensure_binfmt(arch: Arch) -> None:
    raise LockstepError("todo", fix=str(arch))
