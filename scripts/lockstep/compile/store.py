"""The store of compiled wheels: wheels/<key>/ holds one wheel, key.json, and the ledger of its builds."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lockstep.compile import ledger
from lockstep.compile.spec import CacheKey
from lockstep.errors import LockstepError
from lockstep.files import sha256_file, write_text
from lockstep.paths import WHEELS

KEY = "key.json"


@dataclass(frozen=True)
class StoredWheel:
    """A compiled wheel in the store."""

    key: str
    path: Path
    sha256: str
    size: int


def find(key: CacheKey, store: Path = WHEELS) -> StoredWheel | None:
    """Return the wheel that was built under a key, or None.

    LockstepError where the folder holds something else: a wheel that was replaced by hand must not reach an image.
    """
    folder = store / key.digest()
    if not folder.is_dir():
        return None
    wheels = sorted(folder.glob("*.whl"))
    book = ledger.read(folder)
    fix = "delete the folder and run `make wheels`"
    if len(wheels) != 1 or book is None or not (folder / KEY).is_file():
        raise LockstepError("is not a whole entry of the wheel store", where=str(folder), fix=fix)
    sha256 = sha256_file(wheels[0])
    if (folder / KEY).read_text() != key.text() or book.builds[-1].sha256 != sha256:
        raise LockstepError(f"{wheels[0].name} is not what was built under this key", where=str(folder), fix=fix)
    return StoredWheel(key.digest(), wheels[0], sha256, wheels[0].stat().st_size)


def enter(key: CacheKey, wheel: Path, store: Path = WHEELS) -> tuple[StoredWheel, ledger.Ledger]:
    """Put a freshly built wheel into the store, whole or not at all; compare it with an earlier build of its key."""
    folder = store / key.digest()
    old = ledger.read(folder)
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".enter-", dir=store) as text:
        made = Path(text) / "entry"
        made.mkdir()
        shutil.copyfile(wheel, made / wheel.name)
        (made / wheel.name).chmod(0o644)
        write_text(made / KEY, key.text())
        book = ledger.enter(made, made / wheel.name, old.builds[-1] if old else None)
        if folder.exists():
            # Two renames: a reader between them finds no entry, and builds or waits, but never half of one.
            folder.rename(Path(text) / "old")
        os.rename(made, folder)  # noqa: PTH104 - the entry keeps its name through `folder`
    stored = folder / wheel.name
    return StoredWheel(key.digest(), stored, sha256_file(stored), stored.stat().st_size), book
