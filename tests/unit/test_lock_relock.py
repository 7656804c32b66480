"""Relocking: nothing moves by itself, nothing is half written, and the backends stay near to one another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import lockkit
from lockkit import lock, locked
from lockstep import relock as relock_module
from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.lock import Lock, inputs_of, lock_path, read_lock
from lockstep.matrix import Matrix
from lockstep.relock import relock
from lockstep.resolve import Upgrade

TWO = "  a: {line: plain, requires: [x]}\n  b: {line: plain, requires: [x]}"
BOTH = "  all: {backends: [a, b]}"


class Resolver:
    """Stands in for uv: gives the version it is told to, and notes what it was asked."""

    def __init__(self) -> None:
        self.version = "1.0"
        self.fails_for = ""
        self.asked: list[str] = []
        self.preferred: dict[str, list[str]] = {}

    def __call__(
        self,
        matrix: Matrix,
        name: str,
        arch: Arch,
        *,
        previous: Lock | None,
        others: Sequence[Lock],
        upgrade: Upgrade,
    ) -> Lock:
        key = f"{name} {arch}"
        self.asked.append(key)
        self.preferred[key] = [f"{other.backend} {other.arch}" for other in others]
        if key == self.fails_for:
            raise LockstepError(f"no set of wheels for {key}")
        return lock(name, locked("x", self.version), arch=arch, inputs=inputs_of(matrix, name, arch))


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver()
    monkeypatch.setattr(relock_module, "resolve", made)
    return made


def _files(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("lock.*.txt")
    }


def test_relocking_with_nothing_to_change_asks_nothing_and_writes_nothing(tmp_path: Path, resolver: Resolver) -> None:
    matrix = lockkit.matrix(TWO, images=BOTH)
    assert [item.changed for item in relock(matrix, ["a", "b"], Upgrade(), tmp_path)] == [True] * 4
    before = _files(tmp_path)
    resolver.asked, resolver.version = [], "2.0"
    again = relock(matrix, ["a", "b"], Upgrade(), tmp_path)
    assert resolver.asked == []
    assert [item.changed for item in again] == [False] * 4
    assert [item.moves() for item in again] == [[]] * 4
    assert _files(tmp_path) == before


def test_only_the_backend_whose_inputs_changed_is_resolved(tmp_path: Path, resolver: Resolver) -> None:
    relock(lockkit.matrix(TWO, images=BOTH), ["a", "b"], Upgrade(), tmp_path)
    resolver.asked, resolver.version = [], "2.0"
    matrix = lockkit.matrix(TWO.replace("[x]", "[x>1]", 1), images=BOTH)
    moved = relock(matrix, ["a", "b"], Upgrade(), tmp_path)
    assert resolver.asked == ["a x86_64", "a aarch64"]
    assert [item.moves() for item in moved] == [[("x", "1.0", "2.0")]] * 2 + [[]] * 2


def test_a_failure_leaves_every_lock_as_it_was(tmp_path: Path, resolver: Resolver) -> None:
    matrix = lockkit.matrix(TWO, images=BOTH)
    relock(matrix, ["a", "b"], Upgrade(), tmp_path)
    before = _files(tmp_path)
    resolver.version, resolver.fails_for = "2.0", "b aarch64"
    with pytest.raises(LockstepError, match="no set of wheels for b aarch64"):
        relock(matrix, ["a", "b"], Upgrade(everything=True), tmp_path)
    assert _files(tmp_path) == before


@pytest.mark.parametrize("damage", ["", "# not a lock\n", "cut"])
def test_relocking_is_the_way_out_of_a_damaged_lock(tmp_path: Path, resolver: Resolver, damage: str) -> None:
    matrix = lockkit.matrix(TWO, images=BOTH)
    relock(matrix, ["a", "b"], Upgrade(), tmp_path)
    path = lock_path("a", Arch.X86_64, tmp_path)
    whole = path.read_text()
    path.write_text(whole[:-9] if damage == "cut" else damage)
    resolver.asked = []
    relock(matrix, ["a", "b"], Upgrade(), tmp_path)
    assert resolver.asked == ["a x86_64"]
    assert path.read_text() == whole


def test_a_backend_stays_near_its_own_other_architecture_and_then_its_image_mates(
    tmp_path: Path, resolver: Resolver
) -> None:
    three = f"{TWO}\n  c: {{line: plain, requires: [x]}}"
    matrix = lockkit.matrix(three, images=f"{BOTH}\n  alone: {{backends: [c]}}")
    relock(matrix, ["a", "b", "c"], Upgrade(), tmp_path)
    resolver.preferred.clear()
    relock(matrix, ["a", "c"], Upgrade(packages=frozenset({"x"})), tmp_path)
    assert resolver.preferred["a x86_64"] == ["a aarch64", "b x86_64"]
    assert resolver.preferred["c x86_64"] == ["c aarch64"]


def test_what_comes_and_goes_is_told(tmp_path: Path, resolver: Resolver) -> None:
    (new, _) = relock(lockkit.matrix("  a: {line: plain, requires: [x]}"), ["a"], Upgrade(), tmp_path)
    assert new.before is None
    assert new.moves() == [("x", None, "1.0")]
    assert read_lock("a", Arch.X86_64, tmp_path) == new.after
