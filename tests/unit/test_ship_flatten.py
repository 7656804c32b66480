"""Merging layers: against a plain model of the OCI rules, and the cases that trip other tools (B10)."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.errors import LockstepError
from lockstep.ship.flatten import LayerFile, flatten
from lockstep.ship.tarstream import Entry, Reader, Rest, Writer, encode
from shipkit import Member, layer, needs_zstd, pack

Tree = dict[str, tuple[str, int, object]]
"""path -> kind, mode, and what it holds: bytes of a file, target of a symbolic link."""


def merged(layers: list[list[Member]], folder: Path, compression: str = "none") -> tuple[Tree, list[set[str]]]:
    """Flatten and return the tree and the groups of hard-linked names."""
    sources = []
    for number, members in enumerate(layers):
        path = folder / f"layer{number}"
        path.write_bytes(pack(layer(members), compression))
        sources.append(LayerFile(path, compression, f"sha256:{number}"))
    output = folder / "out.tar"
    with output.open("wb", buffering=0) as stream:

        def start() -> Writer:
            stream.seek(0)
            stream.truncate()
            return Writer(stream.fileno())

        flatten(sources, start)
    return read(output)


def read(path: Path) -> tuple[Tree, list[set[str]]]:
    """Return what a tar holds, and its groups of hard-linked names."""
    tree: Tree = {}
    groups: dict[str, set[str]] = {}
    with tarfile.open(path) as archive:
        for info in archive:
            assert info.name not in tree, f"{info.name} is there twice"
            if info.isdir():
                tree[info.name] = ("d", info.mode, None)
            elif info.issym():
                tree[info.name] = ("l", 0, info.linkname)
            elif info.islnk():
                tree[info.name] = tree[info.linkname]
                groups.setdefault(info.linkname, {info.linkname}).add(info.name)
            else:
                stream = archive.extractfile(info)
                assert stream is not None
                tree[info.name] = ("f", info.mode, stream.read())
    return tree, [group for group in groups.values() if len(group) > 1]


class Model:
    """The rules of the OCI image specification, applied upwards the slow way; a file is a list, so links share it."""

    def __init__(self) -> None:
        self.held: dict[str, list[object]] = {}

    def drop(self, path: str, *, itself: bool = True) -> None:
        for name in [each for each in self.held if each.startswith(path + "/") or (itself and each == path)]:
            del self.held[name]

    def apply(self, members: list[Member]) -> None:
        for each in members:
            if each.kind == "w":
                folder, _, name = each.path.rpartition("/")
                if name == ".wh..wh..opq":
                    self.drop(folder, itself=False)
                else:
                    self.drop(f"{folder}/{name.removeprefix('.wh.')}".strip("/"))
        for each in members:
            if each.kind == "w":
                continue
            if each.kind == "d":
                if each.path in self.held and self.held[each.path][0] != "d":
                    del self.held[each.path]
                self.held[each.path] = ["d", each.mode, None]
                continue
            self.drop(each.path)
            if each.kind == "h":
                self.held[each.path] = self.held[each.link]
            else:
                self.held[each.path] = [each.kind, 0 if each.kind == "l" else each.mode, each.link or each.data]

    def result(self) -> tuple[Tree, list[set[str]]]:
        tree: Tree = {name: (str(v[0]), int(str(v[1])), v[2]) for name, v in self.held.items()}
        groups: dict[int, set[str]] = {}
        for name, value in self.held.items():
            if value[0] == "f":
                groups.setdefault(id(value), set()).add(name)
        return tree, [group for group in groups.values() if len(group) > 1]


@st.composite
def one_layer(draw: st.DrawFn) -> list[Member]:
    """A layer as BuildKit writes it: parents before children, whiteouts anywhere, hard links after their first name."""
    names = st.sampled_from(["a", "b", "c"])
    paths = draw(st.lists(st.lists(names, min_size=1, max_size=3).map("/".join), min_size=1, max_size=6, unique=True))
    kinds: dict[str, str] = {}
    for path in sorted(paths):
        parts = path.split("/")
        parents = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        if any(kinds.get(parent, "d") != "d" for parent in parents):
            continue
        kinds.update(dict.fromkeys(parents, "d"))
        kinds.setdefault(path, draw(st.sampled_from("ffdlh")))
    members: list[Member] = []
    files: list[str] = []
    for path, kind in kinds.items():
        mode = draw(st.sampled_from([0o755, 0o700]))
        if kind == "h" and files:
            members.append(Member(path, "h", link=draw(st.sampled_from(files)), mode=mode))
        elif kind == "l":
            members.append(Member(path, "l", link=draw(names)))
        elif kind == "d":
            members.append(Member(path, "d", mode=mode))
        else:
            members.append(Member(path, "f", data=draw(st.binary(min_size=1, max_size=3)), mode=mode))
            files.append(path)
    folders = ["", *[path for path, kind in kinds.items() if kind == "d"]]
    for folder in draw(st.lists(st.sampled_from(folders), max_size=2, unique=True)):
        name = draw(st.sampled_from([".wh.a", ".wh.b", ".wh..wh..opq"] if folder else [".wh.a", ".wh.b"]))
        members.append(Member(f"{folder}/{name}".strip("/"), "w"))
    return members


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(one_layer(), min_size=1, max_size=4))
def test_merging_equals_applying_the_layers_one_after_the_other(layers: list[list[Member]]) -> None:
    model = Model()
    for members in layers:
        model.apply(members)
    with tempfile.TemporaryDirectory() as folder:
        tree, groups = merged(layers, Path(folder))
    wanted, wanted_groups = model.result()
    assert tree == wanted
    assert sorted(map(sorted, groups)) == sorted(map(sorted, wanted_groups))


def test_B10_hard_link_into_a_lower_layer(tmp_path: Path) -> None:
    tree, groups = merged([[Member("a", data=b"x")], [Member("b", "h", link="a")]], tmp_path)
    assert tree == {"a": ("f", 0o644, b"x"), "b": ("f", 0o644, b"x")}
    assert groups == [{"a", "b"}]


def test_B10_hard_link_into_a_lower_layer_whose_first_name_is_gone(tmp_path: Path) -> None:
    layers = [
        [Member("a", data=b"x")],
        [Member("b", "h", link="a"), Member("c", "h", link="a")],
        [Member(".wh.a", "w")],
    ]
    tree, groups = merged(layers, tmp_path)
    assert tree == {"b": ("f", 0o644, b"x"), "c": ("f", 0o644, b"x")}
    assert groups == [{"b", "c"}]


def test_B10_folder_becomes_a_symbolic_link(tmp_path: Path) -> None:
    layers = [[Member("d", "d"), Member("d/x", data=b"1")], [Member("d", "l", link="e"), Member("e", "d")]]
    assert merged(layers, tmp_path)[0] == {"d": ("l", 0, "e"), "e": ("d", 0o755, None)}


def test_hard_link_to_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="/b is a hard link to /a, which no layer holds"):
        merged([[Member("b", "h", link="a")]], tmp_path)


def test_a_path_that_leaves_the_image_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="leaves the image"):
        merged([[Member("a/../../etc/passwd", data=b"x")]], tmp_path)


def test_the_later_of_two_equal_paths_in_a_layer_counts(tmp_path: Path) -> None:
    assert merged([[Member("a", data=b"1"), Member("a", data=b"22")]], tmp_path)[0] == {"a": ("f", 0o644, b"22")}


def test_missing_parents_are_made(tmp_path: Path) -> None:
    assert merged([[Member("a/b/c", data=b"1")]], tmp_path)[0]["a/b"] == ("d", 0o755, None)


@needs_zstd
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_large_files_pass_through_whole(tmp_path: Path, compression: str) -> None:
    data = os.urandom(3_000_001)
    tree, _groups = merged([[Member("big", data=data), Member("next", data=b"n")]], tmp_path, compression)
    assert tree["big"][2] == data
    assert tree["next"][2] == b"n"


@needs_zstd
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_damaged_layer_is_an_error_that_names_it(tmp_path: Path, compression: str) -> None:
    packed = pack(layer([Member("big", data=os.urandom(500_000))]), compression)
    (tmp_path / "bad").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(LockstepError, match=r"sha256:bad|ends within a file"), (tmp_path / "out").open("wb") as out:
        flatten([LayerFile(tmp_path / "bad", compression, "sha256:bad")], lambda: Writer(out.fileno()))


@pytest.mark.parametrize("layout_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_of_every_format_are_read(tmp_path: Path, layout_format: int) -> None:
    name, target = "d" * 90 + "/" + "n" * 90, "t" * 95
    (tmp_path / "t.tar").write_bytes(layer([Member(name, data=b"1"), Member("s", "l", link=target)], layout_format))
    with (tmp_path / "t.tar").open("rb") as stream:
        entries = [(each.path.decode(), each.link.decode()) for each in Reader(stream.fileno())]
    assert entries == [(name, ""), ("s", target)]


@given(
    st.text(st.characters(exclude_characters="\0/.", exclude_categories=["Cs"]), min_size=1, max_size=120),
    st.integers(0, 2**40),
    st.integers(0, 2**31),
)
def test_headers_survive_a_round_trip(name: str, size: int, uid: int) -> None:
    entry = Entry(name.encode(), b"0", 0o640, size, rest=Rest(uid, 7, 5))
    info = tarfile.TarInfo.frombuf(encode(entry)[-512:], "utf-8", "surrogateescape")
    assert info.mode == 0o640
    with tarfile.open(fileobj=io.BytesIO(encode(entry) + bytes(1024))) as archive:
        parsed = archive.next()
    assert parsed is not None
    assert (parsed.name, parsed.size, parsed.uid) == (name, size, uid)


@pytest.mark.parametrize("target", ["/a/Fő", "/" + "t" * 150, "t" * 511, "t" * 512])
def test_targets_of_links_survive(tmp_path: Path, target: str) -> None:
    """mksquashfs cuts the / off a target in a pax header, so none is written there."""
    assert merged([[Member("s", "l", link=target)]], tmp_path)[0] == {"s": ("l", 0, target)}
    assert b"linkpath" not in (tmp_path / "out.tar").read_bytes()
