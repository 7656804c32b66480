"""The first difference of two images is found and named, whatever kind it is."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from imageblobs import Change, image
from lockstep.layerdiff import Difference, first_difference


def compared(tmp_path: Path, change: Change) -> Difference:
    found = first_difference(image(tmp_path / "one"), image(tmp_path / "two", change))
    assert found is not None
    return found


def set_to(number: int, **values: object) -> Change:
    """Return a change of one member's fields; `data` is its content."""

    def change(items: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        info, data = items[number]
        for name, value in values.items():
            if name == "data":
                assert isinstance(value, bytes)
                data = value
                info.size = len(data)
            else:
                setattr(info, name, value)
        items[number] = (info, data)

    return change


@pytest.mark.parametrize(
    ("change", "kind", "path", "said"),
    [
        (set_to(1, data=b"one\n2\nthree\n"), "content", "opt/a.txt", "first in line 2: 'two' and '2'"),
        (set_to(2, data=b"\0\1\2\3" * 63 + b"\0\1\2\4"), "content", "opt/b.so", "first at byte 255"),
        (set_to(1, mode=0o600), "mode", "opt/a.txt", "0644 and 0600"),
        (set_to(0, mtime=1767225601), "mtime", "opt", "1767225600 and 1767225601"),
        (set_to(1, uid=1000), "owner", "opt/a.txt", "0:0 and 1000:0"),
        (set_to(4, linkname="b.so"), "link", "opt/soft", "to a.txt and to b.so"),
        (set_to(3, type=tarfile.SYMTYPE), "type", "opt/hard", "hard link and symbolic link"),
        (set_to(1, pax_headers={"SCHILY.xattr.user.x": "1"}), "xattrs", "opt/a.txt", "user.x"),
        (lambda items: items.pop(), "only-first", "opt/soft", "the second build lacks it"),
        (lambda items: items.insert(0, items.pop(2)), "order", "opt", "the other has opt/b.so there"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value and "/" not in value else "",
)
def test_each_kind_of_difference_is_named(tmp_path: Path, change: Change, kind: str, path: str, said: str) -> None:
    found = compared(tmp_path, change)
    assert (found.kind, found.path, found.layer) == (kind, path, 2)
    assert said in found.what


def test_what_is_there_in_one_build_alone(tmp_path: Path) -> None:
    found = first_difference(image(tmp_path / "one", lambda items: items.pop()), image(tmp_path / "two"))
    assert found is not None
    assert (found.kind, found.path) == ("only-second", "opt/soft")


def test_all_members_that_differ_are_counted(tmp_path: Path) -> None:
    def change(items: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        for info, _ in items:
            info.mtime = 1
        items[1][0].mode = 0o600

    found = compared(tmp_path, change)
    assert found.counts == {"mtime": 5, "mode": 1}
    assert found.sentence() == ("layer 2: opt: mtime: 1767225600 and 1 (in all 1 by mode, 5 by mtime)")


def test_the_same_content_packed_differently(tmp_path: Path) -> None:
    found = first_difference(image(tmp_path / "one", level=1), image(tmp_path / "two", level=9))
    assert found is not None
    assert found.kind == "packing"


def test_a_configuration_that_differs(tmp_path: Path) -> None:
    found = first_difference(
        image(tmp_path / "one", config={"Env": ["A=1"]}), image(tmp_path / "two", config={"Env": ["A=2"]})
    )
    assert found is not None
    assert (found.kind, found.path) == ("configuration", "configuration config.Env[0]")
    assert found.what == '"A=1" and "A=2"'


def test_equal_images_have_none(tmp_path: Path) -> None:
    assert first_difference(image(tmp_path / "one"), image(tmp_path / "two")) is None
