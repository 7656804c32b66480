"""`make lock-diff BASE=<git ref>`: what a change of the locks moves, and whether anything went backwards unsaid.

A merge that keeps one side's lock brings back old versions without a conflict to look at. So a package that is older
than at BASE is a fault, unless `older:` of its backend declares that version and says why.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.lock import Lock, lock_path, parse_lock, read_lock
from lockstep.matrix import Matrix
from lockstep.paths import ROOT


@dataclass(frozen=True)
class Move:
    """A package of one backend on one architecture, at BASE and now; None where it is not in the lock.

    why is the reason of `older:` where that declares the version it has now.
    """

    backend: str
    arch: Arch
    package: str
    before: str | None
    after: str | None
    why: str = ""

    @property
    def kind(self) -> str:
        """Return in, out, up, down, or built: the same version, taken from elsewhere or as another file."""
        if self.before is None:
            return "in"
        if self.after is None:
            return "out"
        if Version(self.before) == Version(self.after):
            return "built"
        return "up" if Version(self.before) < Version(self.after) else "down"


@dataclass(frozen=True)
class Uneven:
    """A package whose version differs between the architectures of one backend."""

    backend: str
    package: str
    versions: Mapping[Arch, str]


def moves(matrix: Matrix, base: Mapping[tuple[str, Arch], Lock], now: Mapping[tuple[str, Arch], Lock]) -> list[Move]:
    """Return what differs between two sets of locks, by backend, architecture and package."""
    found = []
    for key in sorted({*base, *now}):
        name, arch = key
        if key not in base or key not in now:
            count = f"({len((base.get(key) or now[key]).wheels)} packages)"
            found.append(Move(name, arch, count, None if key in now else "lock", "lock" if key in now else None))
            continue
        old, new = base[key].by_name(), now[key].by_name()
        declared = {item.package: item for item in matrix.backends[name].older} if name in matrix.backends else {}
        for package in sorted({*old, *new}):
            before, after = old.get(package), new.get(package)
            if before == after:
                continue
            reason = declared.get(package)
            why = reason.why if reason and after and Version(reason.version) == Version(after.version) else ""
            found.append(
                Move(name, arch, package, before.version if before else None, after.version if after else None, why)
            )
    return found


def backwards(found: Iterable[Move]) -> list[Move]:
    """Return the moves to an older version that nothing declares."""
    return [move for move in found if move.kind == "down" and not move.why]


def uneven(locks: Iterable[Lock]) -> list[Uneven]:
    """Return the packages that one backend has in different versions on its architectures."""
    seen: dict[tuple[str, str], dict[Arch, str]] = {}
    for lock in locks:
        for wheel in lock.wheels:
            seen.setdefault((lock.backend, wheel.name), {})[lock.arch] = wheel.version
    return [
        Uneven(backend, package, versions)
        for (backend, package), versions in sorted(seen.items())
        if len(set(versions.values())) > 1
    ]


def locks_at(ref: str, root: Path = ROOT) -> dict[tuple[str, Arch], Lock]:
    """Return the locks of a git commit, by backend and architecture. LockstepError where git does not know it."""
    listed = _git(root, "ls-tree", "-r", "--name-only", "-z", f"{ref}^{{commit}}", "--", "images")
    found = {}
    for name in listed.split("\0"):
        parts = name.split("/")
        if len(parts) != 3 or not (parts[2].startswith("lock.") and parts[2].endswith(".txt")):
            continue
        arch = Arch(parts[2].split(".")[1])
        text = _git(root, "show", f"{ref}:{name}")
        found[parts[1], arch] = parse_lock(text, parts[1], arch, f"{ref}:{name}")
    return found


def locks_now(matrix: Matrix, root: Path = ROOT) -> dict[tuple[str, Arch], Lock]:
    """Return the locks of the checkout, as far as they are there."""
    return {
        (name, arch): read_lock(name, arch, root)
        for name in matrix.backends
        for arch in matrix.targets()
        if lock_path(name, arch, root).is_file()
    }


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise LockstepError(
            f"git {words[0]} says: {said[-1] if said else 'nothing'}",
            where=str(root),
            fix="name a branch, tag or commit that is here with BASE=",
        )
    return done.stdout
