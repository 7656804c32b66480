"""A copy of what resolving reads and writes, so that a bump that fails, or is only asked about, leaves nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.files import write_text
from lockstep.lock import Lock, inputs_of, lock_path, read_lock, write_lock
from lockstep.matrix import Matrix
from lockstep.matrix.models import Hold
from lockstep.paths import ROOT
from lockstep.relock import relock
from lockstep.resolve import Upgrade

Locks = dict[tuple[str, Arch], Lock]


@dataclass(frozen=True)
class Workspace:
    """The copy: versions.yaml's locks and the build environments' locks below `root`."""

    root: Path

    def relock(self, matrix: Matrix, name: str, package: str = "", to: str = "") -> None:
        """Resolve one backend on every architecture of `matrix` and write its locks here.

        package, to: a version that nothing in versions.yaml pins; the lock alone carries it. LockstepError where there
        is no solution.
        """
        if not package:
            relock(matrix, [name], Upgrade(), self.root)
            return
        held = Hold(package=package, version=to, why="asked for by make bump")
        backend = matrix.backends[name]
        wanted = backend.model_copy(update={"holds": [*backend.holds, held]})
        asked = matrix.model_copy(update={"backends": {**matrix.backends, name: wanted}})
        relock(asked, [name], Upgrade(), self.root)
        for arch in matrix.targets():
            lock = read_lock(name, arch, self.root)
            write_lock(replace(lock, inputs=inputs_of(matrix, name, arch)), self.root)

    def publish(self, text: str, names: list[str], matrix: Matrix, root: Path = ROOT) -> None:
        """Write the locks and then versions.yaml to the checkout."""
        for name in names:
            for arch in matrix.targets():
                write_lock(read_lock(name, arch, self.root), root)
        write_text(root / "versions.yaml", text)


@contextmanager
def workspace(root: Path = ROOT) -> Iterator[Workspace]:
    """Yield a copy of the checkout's locks; it is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bump-") as folder:
        copy = Path(folder)
        for path in [*root.glob("images/*/lock.*.txt"), *root.glob("compile/*/lock.*.txt")]:
            target = copy / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        yield Workspace(copy)


def locks_of(matrix: Matrix, names: list[str], root: Path) -> Locks:
    """Return the locks of some backends, as far as they are there and whole."""
    found: Locks = {}
    for name in names:
        for arch in matrix.targets():
            if lock_path(name, arch, root).is_file():
                found[name, arch] = read_lock(name, arch, root)
    return found


def require_fresh(matrix: Matrix, names: list[str], root: Path = ROOT) -> Locks:
    """Return the locks of some backends. LockstepError where one is older than versions.yaml: a bump would then also
    move what was changed before it."""
    found = locks_of(matrix, names, root)
    for name in names:
        for arch in matrix.targets():
            lock = found.get((name, arch))
            if lock is None or lock.inputs != inputs_of(matrix, name, arch):
                raise LockstepError(
                    "versions.yaml has changed since this lock was made" if lock else "there is no lock",
                    where=f"images/{name}/lock.{arch}.txt",
                    fix=f"run `make lock BACKEND={name}` first, so that the report is about the bump alone",
                )
    return found
