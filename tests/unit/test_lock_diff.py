"""`make lock-diff`: what moved against another commit, and that nothing goes backwards unsaid."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import lockkit
from lockkit import lock, locked
from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.lock import Lock, write_lock
from lockstep.lockdiff import Move, Uneven, backwards, locks_at, locks_now, moves, uneven

ONE = "  a: {line: plain, requires: [x]}"
OLDER = '  a: {line: plain, requires: [x], older: [{package: x, version: "1.0", why: "2.0 faults on Blackwell"}]}'


def _moves(backends: str, before: Lock, after: Lock) -> list[Move]:
    return moves(lockkit.matrix(backends), {("a", before.arch): before}, {("a", after.arch): after})


def test_each_move_is_told_by_its_kind() -> None:
    before = lock("a", locked("down", "1.10"), locked("gone"), locked("same"), locked("up", "1.9"), locked("other"))
    after = lock(
        "a", locked("down", "1.9"), locked("new"), locked("same"), locked("up", "1.10"), locked("other", size=2)
    )
    kinds = {move.package: (move.kind, move.before, move.after) for move in _moves(ONE, before, after)}
    assert kinds == {
        "down": ("down", "1.10", "1.9"),
        "gone": ("out", "1.0", None),
        "new": ("in", None, "1.0"),
        "up": ("up", "1.9", "1.10"),
        "other": ("built", "1.0", "1.0"),
    }


def test_a_package_that_went_backwards_is_a_fault_unless_declared_with_its_why() -> None:
    before, after = lock("a", locked("x", "2.0")), lock("a", locked("x", "1.0"))
    (fault,) = backwards(_moves(ONE, before, after))
    assert (fault.package, fault.before, fault.after) == ("x", "2.0", "1.0")
    (declared,) = _moves(OLDER, before, after)
    assert declared.why == "2.0 faults on Blackwell"
    assert backwards([declared]) == []


def test_a_declaration_excuses_only_the_version_that_it_names() -> None:
    found = _moves(OLDER, lock("a", locked("x", "2.0")), lock("a", locked("x", "0.9")))
    assert [move.after for move in backwards(found)] == ["0.9"]


def test_a_whole_new_backend_is_one_row() -> None:
    found = moves(lockkit.matrix(ONE), {}, {("a", Arch.X86_64): lock("a", locked("x"), locked("y"))})
    assert [(move.package, move.kind) for move in found] == [("(2 packages)", "in")]


def test_versions_that_differ_between_the_architectures_are_listed() -> None:
    locks = [
        lock("a", locked("x", "1.0"), locked("y")),
        lock("a", locked("x", "1.1"), locked("y"), locked("only"), arch=Arch.AARCH64),
    ]
    assert uneven(locks) == [Uneven("a", "x", {Arch.X86_64: "1.0", Arch.AARCH64: "1.1"})]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one committed lock."""
    write_lock(lock("a", locked("x", "2.0")), tmp_path)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "lock"], ["tag", "base"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    return tmp_path


def test_the_locks_of_a_commit_are_read_from_git_and_the_checkout_stays(checkout: Path) -> None:
    write_lock(lock("a", locked("x", "1.0")), checkout)
    assert locks_at("base", checkout) == {("a", Arch.X86_64): lock("a", locked("x", "2.0"))}
    now = locks_now(lockkit.matrix(ONE), checkout)
    assert now == {("a", Arch.X86_64): lock("a", locked("x", "1.0"))}
    (fault,) = backwards(moves(lockkit.matrix(ONE), locks_at("base", checkout), now))
    assert fault == Move("a", Arch.X86_64, "x", "2.0", "1.0")


def test_a_commit_that_is_not_here_is_one_sentence(checkout: Path) -> None:
    with pytest.raises(LockstepError, match="git ls-tree says") as caught:
        locks_at("no-such-branch", checkout)
    assert "BASE=" in caught.value.fix
