"""A bump edits versions.yaml by the character: comments, quotes and layout stay."""

from __future__ import annotations

import difflib

import pytest

from lockstep.bump.edit import Edit, apply, edits_for, exact_version, pins_of
from lockstep.errors import LockstepError
from lockstep.matrix import Matrix, parse
from lockstep.paths import VERSIONS

TEXT = """
schema: 1
epoch: 1767225600 # a comment
python: "3.13"
arches: [x86_64, aarch64]
bases:
  bootstrap: {suite: trixie, packages: [python3.13]}
lines:
  new:   { torch: "2.13.0",   triton: '3.7.1' } # odd spaces on purpose
  old: { torch: "2.11.0" }
compile:
  made:
    version: "1.0"
    why: there is no wheel of it anywhere
    source: {sdist_sha256: "SUM"}
    cuda: null
    imports: [made]
  grown:
    version: "1.0"
    why: there is no wheel of it anywhere
    source: {git: "https://example.invalid/grown.git", commit: "COMMIT"}
    cuda: null
    imports: [made]
backends:
  a:
    line: new
    requires: ["top==1.0", 'other[x]==1.0.1', ray] # top
    compile: [made, grown]
    overrides:
      - requirement: numpy==2.4.1 # why it is so
        why: something refuses the newer one
    constraints:
      - requirement: capped>=1,<2
        why: version 2 removed what is used
    holds:
      - package: ray
        version: "2.56.1"
        why: all must have the same one
  b:
    line: old
    requires: ["top==1.0", plain]
    holds:
      - {package: ray, version: "2.56.1", why: all must have the same one}
images:
  both: {backends: [a, b]}
""".replace("SUM", "0" * 64).replace("COMMIT", "0" * 40)


@pytest.fixture
def matrix() -> Matrix:
    return parse(TEXT)


def bumped(matrix: Matrix, package: str, to: str, *backends: str) -> str:
    edits = [edit for pin in pins_of(matrix, package, backends) for edit in edits_for(matrix, pin, to, "asked for")]
    return apply(TEXT, edits)


def changed(before: str, after: str) -> list[tuple[str, str]]:
    pairs = zip(before.splitlines(), after.splitlines(), strict=True)
    return [(one, two) for one, two in pairs if one != two]


def test_a_requirement_moves_in_its_backend_alone(matrix: Matrix) -> None:
    assert changed(TEXT, bumped(matrix, "top", "1.1", "a")) == [
        (
            """    requires: ["top==1.0", 'other[x]==1.0.1', ray] # top""",
            """    requires: ["top==1.1", 'other[x]==1.0.1', ray] # top""",
        )
    ]


def test_extras_and_single_quotes_stay(matrix: Matrix) -> None:
    assert "'other[x]==2.0.post1'" in bumped(matrix, "other", "2.0.post1", "a")


def test_a_line_keeps_its_spaces_and_comment(matrix: Matrix) -> None:
    assert changed(TEXT, bumped(matrix, "torch", "2.14.0", "a")) == [
        (
            """  new:   { torch: "2.13.0",   triton: '3.7.1' } # odd spaces on purpose""",
            """  new:   { torch: "2.14.0",   triton: '3.7.1' } # odd spaces on purpose""",
        )
    ]


def test_an_unquoted_override_keeps_its_comment(matrix: Matrix) -> None:
    assert "requirement: numpy==2.4.2 # why it is so" in bumped(matrix, "numpy", "2.4.2", "a")


def test_a_hold_moves_in_every_backend_that_is_named(matrix: Matrix) -> None:
    assert bumped(matrix, "ray", "2.57.0", "a", "b").count("2.57.0") == 2
    assert bumped(matrix, "ray", "2.57.0", "b").count("2.57.0") == 1


def test_a_cap_is_no_pin(matrix: Matrix) -> None:
    assert pins_of(matrix, "capped", ["a"]) == []
    assert pins_of(matrix, "plain", ["b"]) == []


def test_a_source_that_is_a_commit_is_for_a_person_to_move(matrix: Matrix) -> None:
    with pytest.raises(LockstepError, match="commit"):
        bumped(matrix, "grown", "1.1", "a")


def test_several_edits_of_one_list(matrix: Matrix) -> None:
    edits = [
        Edit(("backends", "a", "requires", 0), "1.0", "10.0", ""),
        Edit(("backends", "a", "requires", 1), "1.0.1", "3", ""),
    ]
    assert """["top==10.0", 'other[x]==3', ray]""" in apply(TEXT, edits)


@pytest.mark.parametrize(
    ("key", "before"), [(("backends", "a", "requires", 9), "1.0"), (("backends", "a", "requires", 0), "7.7")]
)
def test_an_edit_that_does_not_fit_is_refused(key: tuple[str | int, ...], before: str) -> None:
    with pytest.raises(LockstepError, match=r"versions\.yaml backends\.a\.requires"):
        apply(TEXT, [Edit(key, before, "2", "")])


@pytest.mark.parametrize(
    ("text", "version"),
    [("a==1.0", "1.0"), ("a[x]===1", "1"), ("a==1.*", None), ("a>=1", None), ("a", None), ("a==1,<2", None)],
)
def test_what_is_an_exact_pin(text: str, version: str | None) -> None:
    assert exact_version(text) == version


def test_the_real_file_changes_by_one_line() -> None:
    text = VERSIONS.read_text()
    matrix = parse(text)
    pin = pins_of(matrix, "vllm", ["vllm"])[0]
    after = apply(text, edits_for(matrix, pin, "99.0", "asked for"))
    diff = [line for line in difflib.ndiff(text.splitlines(), after.splitlines()) if line[0] in "+-"]
    assert len(diff) == 2
    assert parse(after).backends["vllm"].requires[0] == "vllm==99.0"
