"""Give torch older than 2.13 a cache folder where the user has no name.

A container may run under a user id without an entry in /etc/passwd (`docker run --user`, runAsUser on Kubernetes).
torch._dynamo asks for the user's name when it is imported, to name its cache folder, and torch before 2.13 lets the
import fail: OSError: No username set in the environment. torch 2.13 names the folder by the id; so does this.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from types import ModuleType

from lockstep_runtime.ipc import line

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def on_torch(torch: ModuleType) -> str:
    """Set the variable where nobody has and the user has no name; return what was done."""
    if line(torch.__version__) >= (2, 13):
        return f"not needed: torch {torch.__version__} does this itself"
    try:
        return f"not needed: the user is {getpass.getuser()}"
    except (KeyError, OSError):  # KeyError before Python 3.13
        folder = os.environ.setdefault(VARIABLE, f"{tempfile.gettempdir()}/torchinductor_uid_{os.getuid()}")
        return f"active: user id {os.getuid()} has no name; {VARIABLE} is {folder}"
