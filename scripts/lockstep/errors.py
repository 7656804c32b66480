"""The one exception that a user is meant to read."""

from __future__ import annotations


class LockstepError(Exception):
    """A fault in what the user gave or in the machine, not in Lockstep.

    what: one clause that names the thing that is wrong.
    where: file, line and key (`versions.yaml:12 backends.vllm.torch`), or the place on disk or the network.
    fix: what to do about it, as an imperative.

    The command line prints `error: WHERE: WHAT; FIX` on one line of stderr and exits with 1; there is no traceback.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.fix}" if self.fix else text
