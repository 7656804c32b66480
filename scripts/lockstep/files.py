"""Write files so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lockstep.console import note


@contextlib.contextmanager
def held_lock(path: Path, waiting: str = "") -> Iterator[None]:
    """Hold the lock file `path`; where another holds it, say `waiting`, if anything, and wait for it.

    The kernel frees the lock when its holder ends, however it ends (flock(2)); the file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                note(waiting)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success rename it over `path`, on any error remove it.

    The rename is atomic because both names lie in one folder, hence on one file system (rename(2)).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> bool:
    """Write `text` as UTF-8 unless the file holds it already; return whether it was written.

    An unchanged file keeps its mtime, so that make and BuildKit see that nothing happened.
    """
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return False
    with replacing(path) as part:
        part.write_bytes(data)
        part.chmod(0o644)
    return True


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
