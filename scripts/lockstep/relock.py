"""`make lock`: resolve the backends in order, each with the others' versions as soft preferences, then write all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.lock import Lock, inputs_of, read_lock, write_lock
from lockstep.matrix import Matrix
from lockstep.paths import ROOT
from lockstep.resolve import Upgrade, resolve


@dataclass(frozen=True)
class Relocked:
    """One lock before and after. `changed` says whether its file was written."""

    before: Lock | None
    after: Lock
    changed: bool

    def moves(self) -> list[tuple[str, str | None, str | None]]:
        """Return (package, version before, version after) for each that moved, came (None before) or went."""
        old = {wheel.name: wheel.version for wheel in self.before.wheels} if self.before else {}
        new = {wheel.name: wheel.version for wheel in self.after.wheels}
        return [(name, old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)]


def relock(matrix: Matrix, names: list[str], upgrade: Upgrade, root: Path = ROOT) -> list[Relocked]:
    """Resolve the backends `names` on every architecture of the matrix and write their locks.

    Nothing is written before everything is resolved, so a failure leaves every lock as it was. A lock that was
    resolved from the same inputs is kept without asking the index: its versions would be preferred anyway.
    """
    known = {
        (name, arch): lock
        for name in matrix.backends
        for arch in matrix.targets()
        if (lock := _old(name, arch, root)) is not None
    }
    before = dict(known)
    for name in names:
        for arch in matrix.targets():
            old = before.get((name, arch))
            if old is not None and old.inputs == inputs_of(matrix, name, arch) and upgrade == Upgrade():
                continue
            known[name, arch] = resolve(
                matrix,
                name,
                arch,
                previous=old,
                others=_others(matrix, known, name, arch),
                upgrade=upgrade,
            )
    return [
        Relocked(before.get((name, arch)), known[name, arch], write_lock(known[name, arch], root))
        for name in names
        for arch in matrix.targets()
    ]


def _old(name: str, arch: Arch, root: Path) -> Lock | None:
    """Return the lock that is there, or None where it is missing or damaged: relocking is the way out of both."""
    try:
        return read_lock(name, arch, root)
    except LockstepError:
        return None


def _others(matrix: Matrix, known: dict[tuple[str, Arch], Lock], name: str, arch: Arch) -> list[Lock]:
    """Return the locks to stay near to: this backend's on other architectures, then its image mates' on this one."""
    mates = [
        mate
        for mate in matrix.backends
        if mate != name and any({mate, name} <= set(image.backends) for image in matrix.images.values())
    ]
    keys = [(name, other) for other in matrix.targets() if other is not arch] + [(mate, arch) for mate in mates]
    return [known[key] for key in keys if key in known]
