"""Have torch 2.13's checkpoint daemons meet on the training store.

The process-based asynchronous checkpointer takes a free port, releases it, and has its daemons bind it later; another
process gets there first (EADDRINUSE). With DCP_USE_PREFIX_STORE=1 the daemons use the training job's own store, which
needs MASTER_ADDR and MASTER_PORT. torch reads the variable when it starts the daemons, so that is when it is set here:
a launcher may set the two others at any time before that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from lockstep_runtime.ipc import line

VARIABLE = "DCP_USE_PREFIX_STORE"


def guard() -> None:
    """Set the variable to 1 where the store's address is known and nobody has set the variable to anything."""
    if os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT"):
        os.environ.setdefault(VARIABLE, "1")


def on_executor(module: ModuleType) -> str:
    """Run the guard before torch gathers what a checkpoint daemon needs, from torch 2.13 on; return what was done."""
    version = sys.modules["torch"].__version__
    if line(version) < (2, 13):
        return f"not needed: torch {version} is older than the 2.13 line"
    done = f"active: {VARIABLE}=1 where MASTER_ADDR and MASTER_PORT are set and {VARIABLE} is not"
    info = module._ProcessGroupInitInfo
    original: Callable[..., None] = info.__init__
    if getattr(original, "lockstep_runtime", False):
        return done

    @wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        guard()
        original(*args, **kwargs)

    init.lockstep_runtime = True  # type: ignore[attr-defined]
    info.__init__ = init
    return done
