"""The lock file: what is written is read back, and what was written by another hand is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import lockkit
from lockkit import lock, locked
from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.lock import LockedWheel, carried, format_lock, inputs_of, lock_path, parse_lock, read_lock, write_lock

COMPILE = """
compile:
  ext: {version: "2.0", why: for this test, source: {sdist_sha256: "%s"}, cuda: null, requires: [y], imports: [ext]}
  opt: {version: "3.0", why: for this test, source: {sdist_sha256: "%s"}, cuda: null, imports: [opt]}
mirror:
  big: {version: "1.0rc1", why: for this test, wheels: {x86_64: {}, aarch64: {}}, requires: [z]}
""" % ("0" * 64, "0" * 64)  # noqa: UP031 - braces are YAML's
OUTSIDE = "  a: {line: plain, requires: [y], compile: [ext], optional: [opt], mirror: [big]}"
KINDS = (
    locked("plain"),
    locked("with-dashes", "2.0.post1+cu130", 7),
    locked("ext", "2.0", origin="compile", built_for="torch-2.13"),
    locked("big", "1.0", 9, origin="mirror"),
    LockedWheel("far", "1.3.0rc21", "", "", 0, "mirror"),
)


def _text(*wheels: LockedWheel) -> str:
    return format_lock(lock("a", *wheels))


def _parse(text: str) -> object:
    return parse_lock(text, "a", Arch.X86_64, "images/a/lock.x86_64.txt")


def test_what_is_written_is_read_back() -> None:
    assert _parse(_text(*KINDS)) == lock("a", *KINDS)
    assert _parse(_text()) == lock("a")


def test_each_kind_of_wheel_has_its_line() -> None:
    lines = _text(*KINDS).splitlines()[3:]
    assert lines[0].endswith("# big-1.0-py3-none-any.whl 9 mirror")
    assert lines[1] == "ext==2.0  # compile for torch-2.13"
    assert lines[2] == "far==1.3.0rc21  # not mirrored"
    assert lines[3].startswith("plain==1.0 --hash=sha256:")
    assert lines[3].endswith("  # plain-1.0-py3-none-any.whl 1000")


def test_no_line_holds_an_address() -> None:
    assert "://" not in _text(*KINDS)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("plain==1.0", "plain==1.1", "plain-1.0-py3-none-any.whl is no wheel of plain"),
        (" 1000", " 1001", "edited by hand"),
        ("--hash=sha256:", "--hash=md5:", "is not a line of a lock"),
        ("ext==2.0", "ext==2.1", "edited by hand"),
        ("torch-2.13", "torch-2.11", "edited by hand"),
        ("plain-1.0-py3", "other-1.0-py3", "is no wheel of plain"),
        ("do not edit.", "please edit.", "is not a lock that Lockstep wrote"),
    ],
)
def test_a_lock_that_was_edited_by_hand_is_refused(old: str, new: str, said: str) -> None:
    text = _text(*KINDS)
    assert old in text
    with pytest.raises(LockstepError, match=said) as caught:
        _parse(text.replace(old, new))
    assert "run `make lock BACKEND=a`" in str(caught.value)


def test_a_removed_line_is_noticed() -> None:
    lines = _text(*KINDS).splitlines(keepends=True)
    with pytest.raises(LockstepError, match="edited by hand"):
        _parse("".join(lines[:-1]))


def test_A7_a_package_is_there_once() -> None:
    text = _text(locked("twin"), locked("twin", "2.0"))
    with pytest.raises(LockstepError, match="twin is out of order or there twice"):
        _parse(text)


def test_a_missing_lock_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match=r"images/a/lock.aarch64.txt: there is no lock; run `make lock BACKEND=a`"):
        read_lock("a", Arch.AARCH64, tmp_path)


def test_writing_the_same_lock_again_leaves_the_file_alone(tmp_path: Path) -> None:
    assert write_lock(lock("a", *KINDS), tmp_path)
    before = lock_path("a", Arch.X86_64, tmp_path).stat()
    assert not write_lock(lock("a", *KINDS), tmp_path)
    assert lock_path("a", Arch.X86_64, tmp_path).stat().st_mtime_ns == before.st_mtime_ns
    assert read_lock("a", Arch.X86_64, tmp_path) == lock("a", *KINDS)


def _inputs(backends: str, more: str = COMPILE) -> str:
    return inputs_of(lockkit.matrix(backends, more), "a", Arch.X86_64)


def test_a_reworded_reason_does_not_make_a_lock_stale() -> None:
    text = '  a: {line: plain, requires: [y], exclude: [{package: q, why: "%s"}]}'
    assert _inputs(text % "one good reason") == _inputs(text % "a better reason")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"2.0"', '"2.1"'),
        ("requires: [y]", "requires: [y>1]"),
        ('"1.0rc1"', '"1.0rc2"'),
        ("requires: [z]", "requires: [z>1]"),
        ("x86_64: {}", 'x86_64: {sha256: "' + "a" * 64 + '", filename: big-1.0rc1-py3-none-any.whl, size: 5}'),
    ],
)
def test_what_is_declared_of_a_wheel_from_elsewhere_counts(old: str, new: str) -> None:
    assert old in COMPILE
    assert _inputs(OUTSIDE) != _inputs(OUTSIDE, COMPILE.replace(old, new))


def test_what_another_architecture_has_does_not_count() -> None:
    known = 'aarch64: {sha256: "' + "a" * 64 + '", filename: big-1.0rc1-py3-none-any.whl}'
    assert _inputs(OUTSIDE) == _inputs(OUTSIDE, COMPILE.replace("aarch64: {}", known))


def test_optional_packages_are_carried_where_the_image_says_with() -> None:
    matrix = lockkit.matrix(OUTSIDE, COMPILE, "  bare: {backends: [a]}\n  full: {backends: [a], with: [opt]}")
    whole = lock("a", locked("ext", "2.0", origin="compile"), locked("opt", "3.0", origin="compile"), locked("y"))
    assert carried(matrix, "full", whole) == whole
    assert [wheel.name for wheel in carried(matrix, "bare", whole).wheels] == ["ext", "y"]
    assert carried(matrix, "bare", whole) == replace(whole, wheels=(whole.wheels[0], whole.wheels[2]))


@pytest.mark.parametrize(
    ("backend", "images", "said"),
    [
        ("compile: [nothing]", "", 'compile declares no "nothing"'),
        ("mirror: [ext]", "", 'mirror declares no "ext"'),
        ("compile: [ext], optional: [ext]", "", '"ext" is named twice'),
        ("compile: [ext], requires: [ext==1.0]", "", '"ext==1.0" contradicts the declared version 2.0'),
        ("optional: [opt]", "  all: {backends: [a], with: [ext]}", 'no backend of this image has "ext" under optional'),
    ],
)
def test_what_names_no_declared_package_is_refused_by_line_and_key(backend: str, images: str, said: str) -> None:
    requires = "" if "requires" in backend else "requires: [y], "
    with pytest.raises(LockstepError, match=r"versions.yaml:\d+") as caught:
        lockkit.matrix(f"  a: {{line: plain, {requires}{backend}}}", COMPILE, images or "  all: {backends: [a]}")
    assert said in str(caught.value)
