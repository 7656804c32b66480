"""The sources of a published package, without installing it and without downloading its binaries.

Of a remote wheel only the .py and .pyi members are fetched, neighbours together in one range request: 9 MB in a
dozen requests of vLLM's 316 MB. They are kept as one zip per wheel, named by the wheel's SHA-256.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.files import replacing
from lockstep.index import RangeFile, RemoteWheel, best_wheel, files_of, open_wheel, redact
from lockstep.paths import state_dir

# Two members closer than this are fetched by one request: a request costs about what 64 kB do.
_GAP = 1 << 16
# No request asks for more, so that a read does not outlast the index's time limit.
_MOST = 8 << 20
# A module name's suffix in a wheel: `_C.cpython-313-x86_64-linux-gnu.so`, `_C.abi3.so`, `_C.so`.
_COMPILED = re.compile(r"^[A-Za-z_]\w*(\.cpython-[\w-]+|\.abi3)?\.(so|pyd)$")
_SOURCE = (".py", ".pyi")
# Raised when the kept form changes, so that an older one is fetched again.
_FORM = 1


@dataclass(frozen=True)
class Sources:
    """The Python files of one version of a package: member names are paths as they lie in site-packages.

    label names it for people ("vllm 0.29.0"); fetched is what came over the network for it, in bytes.
    """

    package: str
    label: str
    archive: Path
    fetched: int = 0

    def names(self) -> list[str]:
        """Return every member: sources, and compiled modules (whose text is empty)."""
        if self.archive.is_dir():
            return _folder_names(self.archive)
        return _zip(self.archive).namelist()

    def read(self, name: str) -> bytes:
        """Return a member's bytes; a damaged archive raises LockstepError."""
        try:
            if self.archive.is_dir():
                return (self.archive / name).read_bytes() if name.endswith(_SOURCE) else b""
            return _zip(self.archive).read(name)
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise LockstepError(f"cannot read {name}: {error}", where=str(self.archive), fix="delete it") from None


@lru_cache(maxsize=8)
def _zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise LockstepError(f"is not a wheel: {error}", where=str(path), fix="download it again") from None


@lru_cache(maxsize=8)
def _folder_names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and wanted(path.name))


def wanted(name: str) -> bool:
    """Whether a member matters: a source, a stub or a compiled module (a plain library in lib/ is none)."""
    base = name.rsplit("/", 1)[-1]
    return base.endswith(_SOURCE) or bool(_COMPILED.match(base))


def fetch_sources(package: str, wanted_version: str) -> Sources:
    """Return the sources of `package` at a version, or those in a wheel on disk or in a folder.

    wanted_version: "0.29.0", the path of a .whl, or a folder that has the package's folder in it.
    LockstepError where the version, the file or the folder is not there or is no wheel.
    """
    path = Path(wanted_version)
    if wanted_version.endswith(".whl") or (("/" in wanted_version or wanted_version == ".") and path.exists()):
        return _local(package, path)
    try:
        Version(wanted_version)
    except InvalidVersion:
        raise LockstepError(
            f'"{wanted_version}" is neither a version, a wheel nor a folder', fix="give a version such as 0.29.0"
        ) from None
    wheel = _any_wheel(package, wanted_version)
    kept = state_dir() / "sources" / f"{wheel.sha256 or wheel.filename}.{_FORM}.zip"
    label = f"{package} {wanted_version}"
    if kept.is_file() and zipfile.is_zipfile(kept):
        return Sources(package, label, kept)
    with open_wheel(wheel) as archive:
        fetched = _keep(archive, kept, package)
    return Sources(package, label, kept, fetched)


def _local(package: str, path: Path) -> Sources:
    if path.is_dir():
        if not any(_folder_names(path)):
            raise LockstepError(
                "the folder has no Python files", where=str(path), fix="name the folder above the package"
            )
        return Sources(package, f"{package} in {path}", path.resolve())
    if not path.is_file():
        raise LockstepError("there is no such wheel", where=str(path), fix="check the path")
    _zip(path).namelist()
    return Sources(package, f"{package} in {path.name}", path)


def _any_wheel(package: str, version: str) -> RemoteWheel:
    """Return a wheel of the version, x86_64 for Python 3.13 if there is one: its Python files are the same in all."""
    files = {item.filename: item for item in files_of(package, version) if item.filename.endswith(".whl")}
    if not files:
        raise LockstepError(
            f"{package} {version} has no wheel, only a source distribution", fix="unpack it and give the folder"
        )
    for arch in (Arch.X86_64, Arch.AARCH64):
        best = best_wheel(list(files), arch, "3.13")
        if best:
            return files[best]
    return files[min(files)]


def _keep(archive: zipfile.ZipFile, kept: Path, package: str) -> int:
    """Write the wanted members of a wheel to `kept`; return the bytes that were fetched for it."""
    members = sorted((i for i in archive.infolist() if wanted(i.filename)), key=lambda item: item.header_offset)
    sources = [item for item in members if item.filename.endswith(_SOURCE)]
    if not sources:
        raise LockstepError(f"the wheel of {package} has no Python files", fix="nothing of it can be checked")
    remote = archive.fp if isinstance(archive.fp, RangeFile) else None
    try:
        with replacing(kept) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as copy:
            for item, data in _read(archive, sources):
                copy.writestr(zipfile.ZipInfo(item.filename), data, zipfile.ZIP_DEFLATED, 1)
            for item in members:
                if not item.filename.endswith(_SOURCE):
                    copy.writestr(zipfile.ZipInfo(item.filename), b"")
    except (zipfile.BadZipFile, EOFError) as error:
        where = redact(remote._url) if remote else str(archive.filename)
        raise LockstepError(f"the wheel is damaged: {error}", where=where, fix="try again") from None
    return remote.fetched if remote else 0


def _read(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> Iterator[tuple[zipfile.ZipInfo, bytes]]:
    """Yield each member with its bytes, after its whole run of neighbours has been asked for in one request."""
    source = archive.fp
    for run in _runs(members):
        if isinstance(source, RangeFile):
            # One read fills the file's blocks; the members below come out of them.
            source.seek(run[0].header_offset)
            source.read(_end(run[-1]) - run[0].header_offset)
        for item in run:
            yield item, archive.read(item)


def _end(item: zipfile.ZipInfo) -> int:
    # Local header: 30 bytes, the name, and an extra field whose length only the local header tells (APPNOTE 4.3.7).
    return item.header_offset + 30 + len(item.filename.encode()) + 64 + item.compress_size


def _runs(members: Iterable[zipfile.ZipInfo]) -> Iterator[list[zipfile.ZipInfo]]:
    run: list[zipfile.ZipInfo] = []
    for item in members:
        if run and (item.header_offset - _end(run[-1]) > _GAP or _end(item) - run[0].header_offset > _MOST):
            yield run
            run = []
        run.append(item)
    if run:
        yield run
