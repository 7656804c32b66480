"""Ask a package index what wheels there are, and read single files out of a wheel that stays where it is.

A wheel is a zip file: its central directory lies at its end and every member can be fetched by an HTTP range
request, so a 500 MB wheel answers most questions for a few hundred kilobytes.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from lockstep.arch import GLIBC, Arch
from lockstep.errors import LockstepError

if TYPE_CHECKING:  # loaded when a page is asked for: rendering imports this module and needs no network
    import requests

_BLOCK = 1 << 18
# Kept per open wheel: 64 MB, so that auditing a large wheel does not hold all of it in memory.
_MAX_BLOCKS = 256
_TIMEOUT = 60.0


@dataclass(frozen=True, order=True)
class RemoteWheel:
    """A wheel as an index lists it. size is in bytes; sha256 in hex; url is where it lies and is never stored."""

    name: str
    version: str
    filename: str
    sha256: str
    size: int
    url: str


def index_url() -> str:
    """Return the simple index to ask, credentials included: from uv's or pip's variables, else the library's own."""
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        value = os.environ.get(variable)
        if value:
            return value.split("=", 1)[1] if "=" in value.split("://", 1)[0] else value
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return PYPI_SIMPLE_ENDPOINT


def redact(url: str) -> str:
    """Return `url` without user and password, fit for a message."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return urlunsplit(parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host))


def supported_tags(arch: Arch, python: str) -> list[Tag]:
    """Return every wheel tag that CPython `python` on a glibc Linux of `arch` accepts, best first.

    Order follows PEP 425 and PEP 600: an exact interpreter before abi3, a newer manylinux before an older one.
    """
    version = tuple(int(part) for part in python.split(".")[:2])
    platforms = [f"manylinux_2_{minor}_{arch}" for minor in range(GLIBC[1], 16, -1)]
    platforms += [f"manylinux2014_{arch}"]
    if arch is Arch.X86_64:
        platforms += [f"manylinux_2_{minor}_{arch}" for minor in range(16, 4, -1)]
        platforms += [f"manylinux2010_{arch}", f"manylinux1_{arch}"]
    platforms += [f"linux_{arch}"]
    interpreter = f"cp{version[0]}{version[1]}"
    return [
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, interpreter=interpreter, platforms=platforms),
    ]


def best_wheel(filenames: list[str], arch: Arch, python: str) -> str | None:
    """Return the file name whose tag ranks best for the platform, or None. A higher build number breaks a tie."""
    ranks = {tag: rank for rank, tag in enumerate(supported_tags(arch, python))}

    def key(filename: str) -> tuple[int, tuple[int, str]] | None:
        try:
            _, _, build, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            return None
        found = [ranks[tag] for tag in tags if tag in ranks]
        return (-min(found), build or (0, "")) if found else None

    usable = [(rank, filename) for filename in filenames if (rank := key(filename)) is not None]
    return max(usable)[1] if usable else None


@lru_cache(maxsize=1)
def _session() -> requests.Session:
    import requests

    session = requests.Session()
    session.headers["User-Agent"] = "lockstep"
    return session


@lru_cache(maxsize=256)
def _page(name: str, index: str) -> tuple[RemoteWheel, ...]:
    import requests
    from pypi_simple import NoSuchProjectError, PyPISimple

    where = f"index {redact(index)}"
    try:
        page = PyPISimple(index, session=_session()).get_project_page(name, timeout=_TIMEOUT)
    except NoSuchProjectError:
        raise LockstepError(f"there is no package {name}", where=where, fix="check the name") from None
    except requests.RequestException as error:
        raise LockstepError(
            f"the index does not answer ({type(error).__name__})",
            where=where,
            fix="check the network, and UV_DEFAULT_INDEX or PIP_INDEX_URL",
        ) from None
    return tuple(
        RemoteWheel(
            canonicalize_name(name),
            item.version or "",
            item.filename,
            item.digests.get("sha256", ""),
            item.size or 0,
            item.url,
        )
        for item in page.packages
        if item.package_type in {"wheel", "sdist"}
    )


def _order(version: str) -> tuple[bool, Version]:
    """Sort key of versions as text: by value, what is no version (PEP 440) first."""
    try:
        return (True, Version(version))
    except InvalidVersion:
        return (False, Version("0"))


def files_of(name: str, version: str | None = None, index: str | None = None) -> list[RemoteWheel]:
    """List the wheels and sdists of a package, of one version where given. LockstepError where there are none.

    `index` is the address of another simple index than the default one.

    An sdist is listed too (its file name does not end in .whl), so that a message can say what there is instead.
    """
    index = index or index_url()
    found = [item for item in _page(canonicalize_name(name), index) if version in (None, item.version)]
    if not found:
        known = sorted({item.version for item in _page(canonicalize_name(name), index)}, key=_order)
        raise LockstepError(
            f"{name} has no version {version}",
            where=f"index {redact(index)}",
            fix=f"choose one of the last: {', '.join(known[-5:])}",
        )
    return found


def find_wheel(name: str, version: str, arch: Arch, python: str) -> RemoteWheel:
    """Return the wheel of a package version that the platform would install.

    LockstepError names package, version, architecture and the tags that exist where no wheel is usable.
    """
    files = files_of(name, version)
    wheels = {item.filename: item for item in files if item.filename.endswith(".whl")}
    best = best_wheel(list(wheels), arch, python)
    if best is None:
        tags = sorted({filename.rsplit("-", 3)[-1].removesuffix(".whl") for filename in wheels})
        have = f"wheels only for {', '.join(tags)}" if tags else "no wheel, only a source distribution"
        raise LockstepError(
            f"{name} {version} has no wheel for {arch} and Python {python}: there are {have}",
            fix="choose another version, exclude it on this architecture, or declare it under compile or mirror",
        )
    return wheels[best]


class RangeFile(io.RawIOBase):
    """A remote file that can be read at any offset; blocks are cached. Counts what it fetched, in bytes."""

    def __init__(self, url: str, size: int) -> None:
        super().__init__()
        self._url = url
        self._size = size
        self._at = 0
        self._blocks: dict[int, bytes] = {}
        self.fetched = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        first, last = self._at // _BLOCK, (end - 1) // _BLOCK
        self._load(first, last)
        joined = b"".join(self._blocks[number] for number in range(first, last + 1))
        data = joined[self._at - first * _BLOCK : end - first * _BLOCK]
        self._at = end
        while len(self._blocks) > _MAX_BLOCKS:
            self._blocks.pop(next(iter(self._blocks)))
        return data

    def _load(self, first: int, last: int) -> None:
        import requests

        missing = [number for number in range(first, last + 1) if number not in self._blocks]
        if not missing:
            return
        start, stop = missing[0] * _BLOCK, min(self._size, (missing[-1] + 1) * _BLOCK)
        try:
            reply = _session().get(self._url, headers={"Range": f"bytes={start}-{stop - 1}"}, timeout=_TIMEOUT)
            reply.raise_for_status()
        except requests.RequestException as error:
            raise LockstepError(
                f"cannot read the wheel ({type(error).__name__})", where=redact(self._url), fix="try again"
            ) from None
        if reply.status_code != requests.codes.partial_content:
            raise LockstepError(
                "the server does not answer range requests", where=redact(self._url), fix="use an index that does"
            )
        self.fetched += len(reply.content)
        for number in range(missing[0], missing[-1] + 1):
            offset = number * _BLOCK - start
            self._blocks[number] = reply.content[offset : offset + _BLOCK]


@contextmanager
def open_wheel(wheel: RemoteWheel | Path) -> Iterator[zipfile.ZipFile]:
    """Open a remote or local wheel as a zip file; only what is read of a remote one is fetched.

    A file that is no zip raises LockstepError. `archive.fp.fetched` tells the bytes fetched of a remote one.
    """
    source: RangeFile | Path = wheel if isinstance(wheel, Path) else RangeFile(wheel.url, wheel.size)
    where = wheel.name if isinstance(wheel, Path) else wheel.filename
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, OSError) as error:
        raise LockstepError(f"is not a wheel: {error}", where=where, fix="download it again") from None
    with archive:
        yield archive
