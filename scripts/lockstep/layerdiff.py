"""Where two builds of one image first differ: which layer, which file, and in what way."""

from __future__ import annotations

import difflib
import hashlib
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, cast

from lockstep.ship.flatten import LayerFile, opened
from lockstep.ship.layout import Descriptor, OciImage

_CHUNK = 1 << 20
_KEPT = 8 << 20
"""Of a file that differs, this many bytes are compared to say where."""


@dataclass(frozen=True)
class Member:
    """One member of a layer, as the archive has it, with a hash of its data."""

    path: str
    kind: str
    mode: int
    owner: tuple[int, int, str, str]
    mtime: float
    size: int
    link: str
    xattrs: tuple[tuple[str, str], ...]
    sha256: str


@dataclass(frozen=True)
class Difference:
    """The first difference. layer is its number from below and its digest in either build, empty for the configuration.

    kind: content, mode, mtime, owner, link, type, xattrs, only-first, only-second, order, format, packing,
    configuration or layers. counts: how many members of that layer differ, by kind.
    """

    kind: str
    path: str
    what: str
    layer: int | None = None
    digests: tuple[str, str] = ("", "")
    counts: Counter[str] = field(default_factory=Counter)

    def sentence(self) -> str:
        """Return it for people."""
        if self.layer is None:
            return f"{self.path}: {self.kind}: {self.what}"
        others = ", ".join(f"{count} by {kind}" for kind, count in sorted(self.counts.items()))
        return f"layer {self.layer}: {self.path}: {self.kind}: {self.what}" + (f" (in all {others})" if others else "")


def first_difference(one: OciImage, two: OciImage) -> Difference | None:
    """Return the first difference of two images, or None where their manifests are equal.

    Layers come first, from below; a configuration differs through them, so it is named only where they are equal.
    """
    if one.descriptor.digest == two.descriptor.digest:
        return None
    for number, (first, second) in enumerate(zip(one.layers, two.layers, strict=False), start=1):
        if first.digest != second.digest:
            found = _layer(one, first, two, second)
            return Difference(found.kind, found.path, found.what, number, (first.digest, second.digest), found.counts)
    if len(one.layers) != len(two.layers):
        return Difference("layers", "manifest", f"{len(one.layers)} layers and {len(two.layers)} layers")
    for name, before, after in _leaves_that_differ(one.config, two.config):
        return Difference("configuration", f"configuration {name}", f"{before} and {after}")
    for name, before, after in _leaves_that_differ(one.manifest, two.manifest):
        return Difference("configuration", f"manifest {name}", f"{before} and {after}")
    return Difference("format", "manifest", "the same content is written differently")


def _leaves_that_differ(one: Any, two: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted({*one, *two}):
            yield from _leaves_that_differ(one.get(key), two.get(key), f"{name}.{key}".removeprefix("."))
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for number, (first, second) in enumerate(zip(one, two, strict=True)):
            yield from _leaves_that_differ(first, second, f"{name}[{number}]")
    elif one != two:
        yield name, json.dumps(one)[:200], json.dumps(two)[:200]


def _layer(one: OciImage, first: Descriptor, two: OciImage, second: Descriptor) -> Difference:
    before, after = members(one, first), members(two, second)
    old, new = {item.path: item for item in before}, {item.path: item for item in after}
    counts: Counter[str] = Counter()
    where: tuple[str, str, str] | None = None
    for path in dict.fromkeys([*old, *new]):
        kinds = list(_member(old.get(path), new.get(path)))
        counts.update(kind for kind, _ in kinds)
        if kinds and where is None:
            where = (kinds[0][0], path, kinds[0][1])
    if where is not None:
        kind, path, what = where
        if kind == "content":
            what += _place(_data(one, first, path), _data(two, second, path))
        return Difference(kind, path, what, counts=counts)
    for number, (item, other) in enumerate(zip(before, after, strict=False), start=1):
        if item.path != other.path:
            return Difference("order", item.path, f"member {number} of one archive; the other has {other.path} there")
    if len(before) != len(after):
        return Difference("order", before[-1].path if before else "", f"{len(before)} members and {len(after)} members")
    if _diff_id(one, first) == _diff_id(two, second):
        return Difference("packing", "(the compressed layer)", "equal archives, compressed to different bytes")
    return Difference("format", "(the archive)", "equal members, written with different headers")


def _member(old: Member | None, new: Member | None) -> Iterator[tuple[str, str]]:
    """Yield every kind of difference of one path, the weightiest first."""
    if old is None or new is None:
        yield (
            ("only-first", "the second build lacks it") if new is None else ("only-second", "the first build lacks it")
        )
        return
    if old.kind != new.kind:
        yield "type", f"{old.kind} and {new.kind}"
        return
    if (old.size, old.sha256) != (new.size, new.sha256):
        yield "content", f"{old.size} bytes and {new.size} bytes"
    if old.link != new.link:
        yield "link", f"to {old.link} and to {new.link}"
    if old.mode != new.mode:
        yield "mode", f"{old.mode:04o} and {new.mode:04o}"
    if old.owner != new.owner:
        yield "owner", f"{_owner(old)} and {_owner(new)}"
    if old.mtime != new.mtime:
        yield (
            "mtime",
            f"{old.mtime:.9g} and {new.mtime:.9g}" if old.mtime % 1 else f"{old.mtime:.0f} and {new.mtime:.0f}",
        )
    if old.xattrs != new.xattrs:
        yield "xattrs", f"{dict(old.xattrs)} and {dict(new.xattrs)}"


def _owner(item: Member) -> str:
    uid, gid, user, group = item.owner
    return f"{uid}:{gid}" + (f" ({user}:{group})" if user or group else "")


@contextmanager
def _archive(image: OciImage, layer: Descriptor) -> Iterator[tarfile.TarFile]:
    file = LayerFile(image.layout.blob(layer.digest), layer.compression, layer.digest)
    with opened(file) as (fd, _), open(fd, "rb", closefd=False) as stream:
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as archive:
            yield archive
        while stream.read(_CHUNK):
            pass  # so that the program at the other end of the pipe ends well


def members(image: OciImage, layer: Descriptor) -> list[Member]:
    """Return the members of a layer in their order; each file's data is hashed."""
    found = []
    with _archive(image, layer) as archive:
        for info in archive:
            total = hashlib.sha256()
            stream = archive.extractfile(info) if info.isreg() else None
            while stream is not None and (piece := stream.read(_CHUNK)):
                total.update(piece)
            xattrs = tuple(sorted((key, value) for key, value in info.pax_headers.items() if "xattr" in key))
            found.append(
                Member(
                    path=info.name.removeprefix("./").strip("/"),
                    kind=_KINDS.get(info.type, info.type.decode(errors="replace")),
                    mode=info.mode,
                    owner=(info.uid, info.gid, info.uname, info.gname),
                    mtime=float(info.mtime),
                    size=info.size,
                    link=info.linkname,
                    xattrs=xattrs,
                    sha256=total.hexdigest(),
                )
            )
    return found


_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "pipe",
}


def _data(image: OciImage, layer: Descriptor, path: str) -> bytes:
    with _archive(image, layer) as archive:
        for info in archive:
            if info.name.removeprefix("./").strip("/") == path and info.isreg():
                stream = archive.extractfile(info)
                return stream.read(_KEPT) if stream else b""
    return b""


def _place(one: bytes, two: bytes) -> str:
    """Say where two files differ first: the line of a text, the offset of anything else."""
    at = next((number for number, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    if b"\0" in one[:4096] or b"\0" in two[:4096]:
        return f", first at byte {at}: {one[at : at + 12].hex()} and {two[at : at + 12].hex()}"
    lines = [side.decode(errors="replace").splitlines() for side in (one, two)]
    matcher = difflib.SequenceMatcher(None, lines[0][:2000], lines[1][:2000], autojunk=False)
    for tag, start, end, begin, stop in matcher.get_opcodes():
        if tag != "equal":
            first, second = " / ".join(lines[0][start:end][:1]), " / ".join(lines[1][begin:stop][:1])
            return f", first in line {start + 1}: {first[:120]!r} and {second[:120]!r}"
    return f", first at byte {at}"


def _diff_id(image: OciImage, layer: Descriptor) -> str:
    number = [item.digest for item in image.layers].index(layer.digest)
    return str(image.config["rootfs"]["diff_ids"][number])
