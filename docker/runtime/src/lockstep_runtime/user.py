"""Name a user who has no name.

A container may run under a user id without an entry in /etc/passwd (`docker run --user`, runAsUser on Kubernetes).
torch._inductor asks for the user's name when it is imported, to name its cache folder, and torch before 2.13 lets the
import fail: OSError: No username set in the environment. torch 2.13 takes uid_<id> there; so does this, for whoever
asks.
"""

from __future__ import annotations

import getpass
import os
from types import ModuleType


def on_torch(_torch: ModuleType) -> str:
    """Set USER, which getpass reads before /etc/passwd, where the user has no name; return what was done."""
    try:
        return f"not needed: the user is {getpass.getuser()}"
    except (KeyError, OSError):  # KeyError before Python 3.13
        os.environ["USER"] = f"uid_{os.getuid()}"
        return f"active: user id {os.getuid()} has no name; USER is {os.environ['USER']}"
