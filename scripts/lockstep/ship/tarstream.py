"""Read and write tar archives as streams, fast: headers in Python, file data moved between pipes by the kernel.

Python's tarfile spends about 100 µs on a member and copies every byte twice through the interpreter; an image has
150,000 members and 10 GB. The formats read are ustar, GNU and pax (POSIX.1-2017, pax(1), "ustar Interchange Format"),
which is what BuildKit, Docker and skopeo write. Written is ustar, with a pax header where a field does not fit.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.errors import LockstepError

BLOCK = 512
REGULAR, LINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
_KNOWN = frozenset({REGULAR, LINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO})
_FILES = frozenset({b"0", b"7", b"\0"})
"""A regular file, a contiguous one, which is the same to us, and a regular file as before POSIX."""
_EXTENSIONS = frozenset({b"x", b"g", b"L", b"K"})
_ZERO = bytes(BLOCK)
_BUFFER = 1 << 20
_SPLICE_FROM = 1 << 16
"""Data of at least this many bytes is spliced from pipe to pipe; less costs more in system calls than in copying."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What of a member is carried along and looked at by nobody on the way."""

    uid: int = 0
    gid: int = 0
    mtime: int = 0
    major: int = 0
    minor: int = 0
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    """Extended attributes by pax keyword (SCHILY.xattr.NAME)."""


@dataclass(slots=True)
class Entry:
    """One member; `path` has neither a leading ./ or / nor a trailing slash, and is empty for the root."""

    path: bytes
    kind: bytes
    mode: int
    size: int = 0
    """Bytes of data that follow; zero for all but regular files."""
    link: bytes = b""
    """Target of a symbolic link, as it is; of a hard link, as a path like `path`."""
    rest: Rest = Rest()
    raw: bytes = b""
    """The header blocks that it was read from; they are written again as they are where nothing was changed."""
    was: tuple[bytes, int, bytes] = (b"", -1, b"")
    """Path, mode and link as they stand in `raw`."""

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind == DIRECTORY


def clean(path: bytes) -> bytes:
    """Return a member's path without ./, leading and trailing slashes; LockstepError where it climbs with `..`."""
    if path.startswith(b"./"):
        path = path[2:]
    path = path.strip(b"/")
    if path == b".":
        return b""
    if b".." in path and b".." in path.split(b"/"):
        raise LockstepError(f"a layer holds the path {path.decode(errors='replace')!r}, which leaves the image")
    if b"/./" in path or b"//" in path:
        path = b"/".join(part for part in path.split(b"/") if part not in {b"", b"."})
    return path


class Reader:
    """Iterate over the members of the archive on a file descriptor; take or skip each one's data before the next."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._stream = io.BufferedReader(io.FileIO(fd, closefd=False), _BUFFER)
        self._left = 0
        """Bytes of the current member's data that were neither taken nor skipped, padding included."""

    def __iter__(self) -> Iterator[Entry]:
        read = self._stream.read
        pax: dict[bytes, bytes] = {}
        long_name = long_link = before = b""
        while True:
            if self._left:
                self.skip()
            header = read(BLOCK)
            if len(header) < BLOCK:
                if not header:
                    return
                raise LockstepError("a layer's tar ends within a header", fix="build or fetch the image again")
            if header == _ZERO:
                self._drain()
                return
            kind = header[156:157]
            if kind in _FILES:
                kind = REGULAR
            elif kind in _EXTENSIONS:
                body = self._body(_number(header[124:136]))
                if kind == b"x":
                    pax = _pax_records(body)
                elif kind == b"L":
                    long_name = body.rstrip(b"\0")
                elif kind == b"K":
                    long_link = body.rstrip(b"\0")
                if kind != b"g":
                    before += header + body + bytes(-len(body) % BLOCK)
                continue
            entry = _entry(header, kind, pax, long_name, long_link)
            if kind != SYMLINK or b"linkpath" not in pax:
                entry.raw = before + header
                entry.was = (entry.path, entry.mode, entry.link)
            else:
                # mksquashfs (4.5 and later) takes a leading / off a link's target that stands in a pax header.
                entry.rest = _rest(before + header)
            if before:
                pax, long_name, long_link, before = {}, b"", b"", b""
            if entry.size:
                self._left = entry.size + -entry.size % BLOCK
            yield entry

    def skip(self) -> None:
        """Pass over what is left of the current member's data."""
        left = self._left
        self._left = 0
        while left:
            got = len(self._stream.read(min(left, _BUFFER)))
            if not got:
                raise LockstepError("a layer's tar ends within a file", fix="build or fetch the image again")
            left -= got

    def copy_data(self, writer: Writer) -> None:
        """Send the current member's data, padding included, to `writer`."""
        left = self._left
        if left >= _SPLICE_FROM:
            ready = self._stream.read(min(left, len(self._stream.peek(1))))
            writer.raw(ready)
            left -= len(ready)
            left -= writer.splice(self._fd, left)
        while left:
            chunk = self._stream.read(min(left, _BUFFER))
            if not chunk:
                raise LockstepError("a layer's tar ends within a file", fix="build or fetch the image again")
            writer.raw(chunk)
            left -= len(chunk)
        self._left = 0

    def _body(self, size: int) -> bytes:
        body = self._stream.read(size)
        self._stream.read(-size % BLOCK)
        if len(body) < size:
            raise LockstepError("a layer's tar ends within a header", fix="build or fetch the image again")
        return body

    def _drain(self) -> None:
        """Read to the end, so that the program at the other end of the pipe ends well."""
        while self._stream.read(_BUFFER):
            pass


class Writer:
    """Write an archive to a file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending: list[bytes] = []
        self._size = 0
        self._can_splice = hasattr(os, "splice")

    def header(self, entry: Entry) -> None:
        """Write a member's header; its data, padded to 512 bytes, must follow."""
        self.raw(encode(entry))

    def file(self, entry: Entry, data: bytes) -> None:
        """Write a member with its data."""
        entry.size = len(data)
        self.header(entry)
        self.raw(data + bytes(-len(data) % BLOCK))

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._pending.append(data)
        self._size += len(data)
        if self._size >= _BUFFER:
            self.flush()

    def splice(self, source: int, count: int) -> int:
        """Move up to `count` bytes from the file descriptor `source`; return how many the kernel could move."""
        moved = 0
        self.flush()
        while self._can_splice and moved < count:
            try:
                got = os.splice(source, self._fd, count - moved)
            except OSError as error:
                if isinstance(error, BrokenPipeError):
                    raise
                # EINVAL: neither end is a pipe. The caller copies instead.
                self._can_splice = False
                break
            if not got:
                break
            moved += got
        return moved

    def flush(self) -> None:
        """Hand over what is buffered."""
        data = memoryview(b"".join(self._pending))
        self._pending.clear()
        self._size = 0
        while data:
            data = data[os.write(self._fd, data) :]

    def finish(self) -> None:
        """Write the two zero blocks that end an archive."""
        self.raw(_ZERO * 2)
        self.flush()


def encode(entry: Entry) -> bytes:
    """Return a member's header blocks: those it was read from, or where it was changed, new ones.

    New ones are ustar, with a pax header before it for what ustar cannot hold.
    """
    if entry.was == (entry.path, entry.mode, entry.link):
        return entry.raw
    rest = _rest(entry.raw) if entry.raw else entry.rest
    path = entry.path + b"/" if entry.is_dir else entry.path
    if not entry.path:
        path = b"./"
    pax: dict[bytes, bytes] = dict(rest.xattrs)
    if len(path) > 100:
        pax[b"path"] = path
        path = path[-100:]
    link, before = entry.link, b""
    if len(link) > 100:
        # GNU's way, not pax's: see Reader.
        before = _block(b"././@LongLink", b"K", 0o644, 0, 0, len(link) + 1, 0, b"", 0, 0)
        before += link + bytes(BLOCK - len(link) % BLOCK)
        link = link[:100]
    size, uid, gid = entry.size, rest.uid, rest.gid
    if size >= 8**11:
        pax[b"size"] = str(size).encode()
        size = 0
    if uid >= 8**7 or gid >= 8**7:
        pax[b"uid"], pax[b"gid"] = str(uid).encode(), str(gid).encode()
        uid = gid = 0
    block = _block(path, entry.kind, entry.mode, uid, gid, size, max(rest.mtime, 0), link, rest.major, rest.minor)
    if not pax:
        return before + block
    body = b"".join(_pax_record(key, pax[key]) for key in sorted(pax))
    head = _block(b"pax", b"x", 0o644, 0, 0, len(body), 0, b"", 0, 0)
    return head + body + bytes(-len(body) % BLOCK) + before + block


def _entry(header: bytes, kind: bytes, pax: dict[bytes, bytes], long_name: bytes, long_link: bytes) -> Entry:
    """Decode what is needed on the way; the rest stays in the header blocks (see _rest)."""
    name = header[:100]
    path = long_name or name[: name.find(b"\0")] if name[99] == 0 else long_name or name
    if header[345] and not long_name and header[257:263] == b"ustar\0":
        path = _text(header[345:500]) + b"/" + path
    size = _number(header[124:136]) if kind == REGULAR else 0
    link = b""
    if kind in {LINK, SYMLINK}:
        link = long_link or _text(header[157:257])
    if pax:
        path, link = pax.get(b"path", path), pax.get(b"linkpath", link)
        if kind == REGULAR:
            size = int(pax.get(b"size", size))
            if any(key.startswith(b"GNU.sparse") for key in pax):
                kind = b"S"
    if kind not in _KNOWN:
        raise LockstepError(
            f"a layer holds {path.decode(errors='replace')!r} as tar type {kind.decode(errors='replace')!r},"
            " which no image builder writes",
            fix="build the image with BuildKit",
        )
    if kind == REGULAR and path.endswith(b"/"):
        kind, size = DIRECTORY, 0
    return Entry(clean(path), kind, _number(header[100:108]) & 0o7777, size, clean(link) if kind == LINK else link)


def _rest(raw: bytes) -> Rest:
    """Decode owner, time, device numbers and extended attributes from a member's header blocks."""
    header = raw[-BLOCK:]
    pax: dict[bytes, bytes] = {}
    at = 0
    while at < len(raw) - BLOCK:
        size = _number(raw[at + 124 : at + 136])
        if raw[at + 156 : at + 157] == b"x":
            pax = _pax_records(raw[at + BLOCK : at + BLOCK + size])
        at += BLOCK + size + -size % BLOCK
    device = header[156:157] in {CHAR, BLOCK_DEVICE}
    return Rest(
        uid=int(pax.get(b"uid", _number(header[108:116]))),
        gid=int(pax.get(b"gid", _number(header[116:124]))),
        mtime=int(float(pax.get(b"mtime", _number(header[136:148])))),
        major=_number(header[329:337]) if device else 0,
        minor=_number(header[337:345]) if device else 0,
        xattrs=tuple((key, value) for key, value in pax.items() if key.startswith(b"SCHILY.xattr.")),
    )


def _block(
    path: bytes, kind: bytes, mode: int, uid: int, gid: int, size: int, mtime: int, link: bytes, major: int, minor: int
) -> bytes:
    start = b"%-100b%07o\0%07o\0%07o\0%011o\0%011o\0" % (path.ljust(100, b"\0"), mode, uid, gid, size, mtime)
    tail = b"%b%bustar\x0000%b%07o\0%07o\0%b" % (
        kind,
        link.ljust(100, b"\0"),
        bytes(64),
        major,
        minor,
        bytes(155 + 12),
    )
    # The checksum counts its own field as eight spaces (pax(1), "ustar Interchange Format").
    return start + b"%06o\0 " % (sum(start) + 8 * 0x20 + sum(tail)) + tail


def _pax_record(key: bytes, value: bytes) -> bytes:
    """Return `LENGTH KEY=VALUE\\n`, where LENGTH counts itself."""
    bare = len(key) + len(value) + 3
    length = bare + len(str(bare))
    if len(str(length)) > len(str(bare)):
        length = bare + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)


def _pax_records(body: bytes) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        space = body.index(b" ", at)
        length = int(body[at:space])
        key, _, value = body[space + 1 : at + length - 1].partition(b"=")
        records[key] = value
        at += length
    return records


def _text(field_: bytes) -> bytes:
    end = field_.find(b"\0")
    return field_ if end < 0 else field_[:end]


def _number(field_: bytes) -> int:
    """Read an octal number, or GNU's base-256 where the top bit is set."""
    if field_[0] & 0x80:
        return int.from_bytes(field_[1:], "big") | (field_[0] & 0x7F) << 8 * (len(field_) - 1)
    text = field_.strip(b" \0")
    try:
        return int(text, 8) if text else 0
    except ValueError:
        raise LockstepError("a layer's tar has a damaged header", fix="build or fetch the image again") from None
