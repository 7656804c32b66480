"""Start other programs, and turn their failures into one clear sentence."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.errors import LockstepError

_TAIL = 15


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    fix: str = "",
    timeout: float | None = None,
) -> str:
    """Run a program to its end and return its stdout as text.

    env replaces the environment where given. timeout is in seconds. A program that is missing, fails or runs out of
    time raises LockstepError with its name, exit code and the last lines of its stderr, and `fix` as the way out.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, check=False, timeout=timeout
        )
    except FileNotFoundError:
        raise LockstepError(f"the program {words[0]} is not installed", fix=fix or "install it") from None
    except subprocess.TimeoutExpired:
        raise LockstepError(f"{words[0]} did not end within {timeout:.0f} s", fix=fix) from None
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_TAIL:])
        raise LockstepError(f"{Path(words[0]).name} failed with exit code {done.returncode}: {tail}", fix=fix)
    return done.stdout
