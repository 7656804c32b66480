"""What a patch is, and whether it fits: docker/build/patch_model.py, and the patches that the images carry."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from patch_model import Patch, PatchError, Range, State, apply_text, choose, judge, overlap, parse, places, version_key

from patchkit import FIRST, HEADER, PATCHES, SECOND

OURS = [parse(path.read_text(), path.name) for path in sorted(PATCHES.glob("*/*.patch"))]
BY_NAME = {patch.filename: patch for patch in OURS}


def _stand_in(patch: Patch) -> dict[str, str]:
    """Return files that hold each anchor of the patch once, between other lines."""
    files: dict[str, str] = {}
    for number, hunk in enumerate(patch.hunks):
        files[hunk.path] = files.get(hunk.path, "first line\n") + hunk.old + f"# between {number}\n"
    return files


def _reader(files: dict[str, str]) -> Callable[[str], str | None]:
    return files.get


ANCHOR_LINES = [
    (patch.filename, hunk.path, number, line)
    for patch in OURS
    for hunk in patch.hunks
    for number, line in enumerate(hunk.old.splitlines(keepends=True))
]


@given(st.sampled_from(ANCHOR_LINES), st.sampled_from(["drop", "change", "double", "indent"]))
def test_any_change_to_any_line_of_an_anchor_stops_the_build(anchor: tuple[str, str, int, str], how: str) -> None:
    name, path, number, line = anchor
    patch = BY_NAME[name]
    files = _stand_in(patch)
    hunk = next(h for h in patch.hunks if h.path == path and number < h.old.count("\n") and line in h.old)
    lines = hunk.old.splitlines(keepends=True)
    if lines[number] != line:  # another hunk of the same file has an equal line
        number = lines.index(line)
    lines[number] = {"drop": "", "change": line.rstrip("\n") + "x\n", "double": line * 2, "indent": " " + line}[how]
    changed = "".join(lines)
    files[path] = files[path].replace(hunk.old, changed)
    if places(files[path], hunk.old):
        return  # a doubled or dropped blank line at the edge leaves the anchor whole
    verdict = judge(patch, _reader(files))
    assert verdict.state is State.BROKEN
    (chosen,) = choose([patch], _inside(patch), _reader(files))
    assert chosen.state is State.BROKEN


def _inside(patch: Patch) -> str:
    """Return a version that the patch is declared for."""
    bound = re.search(r">=\s*([\d.]+)", patch.versions.text)
    assert bound is not None
    return bound[1]


def test_every_anchor_line_is_covered_by_a_break() -> None:
    for patch in OURS:
        for hunk in patch.hunks:
            for number in range(hunk.old.count("\n")):
                lines = hunk.old.splitlines(keepends=True)
                lines[number] = "# changed\n"
                files = _stand_in(patch)
                files[hunk.path] = files[hunk.path].replace(hunk.old, "".join(lines))
                assert judge(patch, _reader(files)).state is State.BROKEN, (patch.filename, hunk.start, number)


@pytest.mark.parametrize("patch", OURS, ids=lambda patch: patch.filename)
def test_each_of_our_patches_applies_once_and_can_be_taken_back(patch: Patch) -> None:
    files = _stand_in(patch)
    assert judge(patch, _reader(files)).state is State.APPLIES
    done = {path: apply_text(patch, path, text) for path, text in files.items()}
    assert judge(patch, _reader(done)).state is State.APPLIED
    assert {path: apply_text(patch, path, text, reverse=True) for path, text in done.items()} == files
    twice = {path: text + text for path, text in files.items()}
    assert judge(patch, _reader(twice)).state is State.BROKEN
    with pytest.raises(PatchError, match="occurs 2 times"):
        apply_text(patch, patch.paths[0], twice[patch.paths[0]])


@pytest.mark.parametrize("patch", OURS, ids=lambda patch: patch.filename)
def test_each_of_our_patches_has_a_whole_header(patch: Patch) -> None:
    assert patch.fields["Forwarded"].split(" ")[0] in {"no", "not-needed"} or "://" in patch.forwarded
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", patch.fields["Last-Update"])
    assert patch.id.startswith(f"{patch.package}-")
    assert any(operator in {"<", "<=", "=="} for operator, _ in patch.versions.clauses), "needs an upper bound"


VERSIONS = ["0.9", "1.0.dev3", "1.0a1", "1.0b2", "1.0rc1", "1.0", "1.0.post1", "1.0.1", "1.2", "1.10", "2.0+cu130"]


@given(st.sampled_from(VERSIONS), st.sampled_from(VERSIONS))
def test_versions_sort_as_packaging_sorts_them(one: str, other: str) -> None:
    assert (version_key(one) < version_key(other)) == (Version(Version(one).public) < Version(Version(other).public))


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [(">=0.25,<0.28", "0.27.9", "0.28.0"), ("==1.0", "1.0.0", "1.0.1"), (">=1,!=1.5,<=2", "2.0", "1.5")],
)
def test_a_range_holds_what_its_clauses_say(text: str, inside: str, outside: str) -> None:
    assert inside in Range.parse(text)
    assert outside not in Range.parse(text)


@pytest.mark.parametrize("text", ["<0.28", "0.28", ">=x", "", "~=1.0"])
def test_a_range_without_a_lower_bound_or_of_unknown_form_is_refused(text: str) -> None:
    with pytest.raises(PatchError):
        Range.parse(text)


def _text(diff: str, **fields: str) -> str:
    values = {"summary": "a test", "id": "demo-a", "versions": ">=1,<2", "more": "", **fields}
    return HEADER.format(**values) + diff


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no header\n" + FIRST, "is neither a field"),
        (_text(FIRST).replace("Forwarded: no\n", ""), "lacks Forwarded"),
        (_text(FIRST).replace("Origin: other, a test\n", ""), "lacks Origin or Bug"),
        (_text(""), "holds no hunk"),
        (_text(FIRST.replace("+++ b/demo/code.py", "+++ b/demo/new.py")), "may only change files"),
        (_text(FIRST.replace(" \n def", " def").replace(" def", "-def")), "context on both sides"),
        (_text(FIRST + "garbage\n"), "does not belong into a unified diff"),
        (_text(FIRST, more="Lockstep-Fixed-By: demo/code.py: (\n"), "missing )"),
    ],
)
def test_a_malformed_patch_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(PatchError, match=re.escape(said)) as caught:
        parse(text, "broken.patch")
    assert str(caught.value).startswith("broken.patch: ")


def test_two_files_of_one_id_may_not_be_for_one_version() -> None:
    patches = [parse(_text(FIRST), "a.patch"), parse(_text(FIRST), "b.patch")]
    with pytest.raises(PatchError, match=re.escape("a.patch and b.patch are both declared for demo 1.5")):
        choose(patches, "1.5", lambda _path: None)


def test_the_variant_for_the_version_is_chosen() -> None:
    old, new = parse(_text(FIRST, versions=">=1,<2"), "old.patch"), parse(_text(SECOND, versions=">=2,<3"), "new.patch")
    for version, name in (("0.9", "old.patch"), ("1.9", "old.patch"), ("2.0", "new.patch"), ("3.5", "new.patch")):
        (verdict,) = choose([new, old], version, lambda _path: None)
        assert verdict.patch.filename == name
        assert (verdict.state is State.NOT_NEEDED) is (version == "0.9")


def test_patches_that_touch_different_lines_do_not_clash(tmp_path: Path) -> None:
    first, second = parse(_text(FIRST), "a.patch"), parse(_text(SECOND), "b.patch")
    files = {"demo/code.py": first.hunks[0].old + "\n" + second.hunks[0].old}
    assert overlap([first, second], _reader(files)) == ""
    touching = {"demo/code.py": first.hunks[0].old.removesuffix("\n") + second.hunks[0].old}
    assert overlap([first, second], _reader(touching)) == ""
    assert "both touch" in overlap([first, parse(_text(FIRST), "b.patch")], _reader(files))
