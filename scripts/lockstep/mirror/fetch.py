"""`make mirror`: find each declared wheel on its index, take it once, check it, keep it."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import requests

from lockstep.arch import Arch
from lockstep.console import download_progress, megabytes
from lockstep.disk import require_disk
from lockstep.errors import LockstepError
from lockstep.files import sha256_file, write_text
from lockstep.index import RemoteWheel, best_wheel, files_of, redact
from lockstep.matrix import Matrix, parse
from lockstep.mirror import store as mirror_store
from lockstep.mirror.check import check_bytes, check_filename, check_requirements, wanted_tag
from lockstep.mirror.store import MIRROR, MirroredWheel
from lockstep.paths import VERSIONS

# Small, because a chunk that a lost connection cut short is lost whole.
_CHUNK = 1 << 16
_TIMEOUT = 60.0
# A source distribution below this size that names a downloading build backend holds no code to speak of.
_STUB_AT_MOST = 4 << 20
_STUB_BACKENDS = ("wheel_stub", "nvidia_pyindex")


@dataclass(frozen=True)
class Mirrored:
    """What became of one declared wheel: `state` is there, fetched, or a fault's short name."""

    package: str
    arch: Arch
    filename: str
    size: int
    state: str


def mirror_all(
    matrix: Matrix,
    packages: Iterable[str],
    arches: Iterable[Arch],
    faults: list[LockstepError],
    store: Path = MIRROR,
    versions: Path = VERSIONS,
) -> Iterator[Mirrored]:
    """Mirror every package on every architecture; a fault of one does not keep the others from being mirrored.

    Faults are added to `faults`. A hash that versions.yaml does not know yet is written into it.
    """
    wanted = [(package, arch) for package in packages for arch in arches]
    with mirror_store.alone(store):
        for package, arch in wanted:
            try:
                yield _one(matrix, package, arch, store, versions)
            except LockstepError as error:
                faults.append(error)
                yield Mirrored(package, arch, "", 0, "not mirrored")


def _one(matrix: Matrix, package: str, arch: Arch, store: Path, versions: Path) -> Mirrored:
    wheel = mirror_store.known(matrix, package, arch, store)
    if wheel is not None and wheel.path.is_file():
        check_bytes(wheel.path, wheel.sha256, str(wheel.path.parent))
        check_requirements(wheel.path, matrix.mirror[package].requires, arch, matrix.python, _requires_key(package))
        return Mirrored(package, arch, wheel.filename, wheel.path.stat().st_size, "there")
    remote = locate(matrix, package, arch)
    if wheel is not None and (remote.sha256 or wheel.sha256) != wheel.sha256:
        raise LockstepError(
            f"the index serves {remote.filename} with sha256 {remote.sha256[:16]}…, "
            f"versions.yaml says {wheel.sha256[:16]}…",
            where=f"versions.yaml mirror.{package}.wheels.{arch}",
            fix="find out who changed the wheel before you change the hash",
        )
    require_disk(store, remote.size, f"the wheel {remote.filename}")
    part = store / ".part" / f"{arch}-{remote.filename}"
    download(remote, part, wheel.sha256 if wheel else remote.sha256)
    sha256 = sha256_file(part)
    check_requirements(part, matrix.mirror[package].requires, arch, matrix.python, _requires_key(package))
    target = store / sha256 / remote.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    part.chmod(0o644)
    part.replace(target)
    if wheel is None:
        write_hash(versions, package, MirroredWheel(package, arch, sha256, target.name, target.stat().st_size, target))
    return Mirrored(package, arch, target.name, target.stat().st_size, "fetched")


def _requires_key(package: str) -> str:
    return f"mirror.{package}.requires"


def locate(matrix: Matrix, package: str, arch: Arch) -> RemoteWheel:
    """Return the wheel that the mirror's index has for the platform.

    LockstepError where it has none: the message names the wanted tag and what there is instead, a stub sdist by name.
    """
    declared = mirror_store.declared(matrix, package, arch)
    version = matrix.mirror[package].version
    index = mirror_store.mirror_index()
    where = f"index {redact(index)}"
    fix = "set LOCKSTEP_MIRROR_INDEX to the simple index that serves it and run `make mirror` again"
    try:
        files = files_of(package, version, index)
    except LockstepError as error:
        raise LockstepError(
            f"there is no {package} {version} for {wanted_tag(arch, matrix.python)} ({error.what})",
            where=where,
            fix=fix,
        ) from None
    wheels = {item.filename: item for item in files if item.filename.endswith(".whl")}
    if declared.filename:
        if declared.filename in wheels:
            return wheels[declared.filename]
        best = None
    else:
        best = best_wheel(list(wheels), arch, matrix.python)
    if best is not None:
        check_filename(best, package, version, arch, matrix.python, where)
        return wheels[best]
    name = declared.filename or wanted_tag(arch, matrix.python)
    others = ", ".join(sorted(wheels)) or "no wheel at all"
    stubs = [describe_sdist(item) for item in files if not item.filename.endswith(".whl")]
    raise LockstepError(
        "; ".join([f"there is no wheel of {package} {version} for {name}: there is {others}", *stubs]),
        where=where,
        fix=fix,
    )


def describe_sdist(item: RemoteWheel) -> str:
    """Say by name what a source distribution is; a stub that would download the real wheel is called that (A15)."""
    if item.size > _STUB_AT_MOST or not item.filename.endswith(".tar.gz"):
        return f"{item.filename} is a source distribution, which a mirror does not take"
    try:
        reply = requests.get(item.url, timeout=_TIMEOUT)
        reply.raise_for_status()
        backend = build_backend(reply.content)
    except (requests.RequestException, tarfile.TarError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return f"{item.filename} is a source distribution, which a mirror does not take"
    if backend.split(".")[0] in _STUB_BACKENDS:
        return f"{item.filename} is a stub: its build backend {backend} would download the real wheel while building"
    return f"{item.filename} is a source distribution, which a mirror does not take"


def build_backend(sdist: bytes) -> str:
    """Return the build backend that a source distribution names (PEP 517), or an empty text."""
    with tarfile.open(fileobj=io.BytesIO(sdist)) as archive:
        for member in archive:
            if member.isfile() and re.fullmatch(r"[^/]+/pyproject\.toml", member.name):
                stream = archive.extractfile(member)
                data = tomllib.loads(stream.read().decode()) if stream else {}
                return str(data.get("build-system", {}).get("build-backend", ""))
    return ""


def download(remote: RemoteWheel, part: Path, sha256: str) -> None:
    """Fetch a wheel into `part`, going on where a killed download stopped.

    The hash is checked over the whole file. A remainder that does not fit is thrown away and fetched anew, once.
    """
    part.parent.mkdir(parents=True, exist_ok=True)
    resumed = part.exists() and part.stat().st_size > 0
    _transfer(remote, part)
    if not sha256 or sha256_file(part) == sha256:
        return
    if resumed:
        part.unlink()
        _transfer(remote, part)
    try:
        check_bytes(part, sha256, redact(remote.url).split("#")[0])
    except LockstepError:
        shutil.rmtree(part.parent, ignore_errors=True)
        raise


def _transfer(remote: RemoteWheel, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    if remote.size and have == remote.size:
        return None
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        with requests.get(remote.url, headers=headers, stream=True, timeout=_TIMEOUT) as reply:
            if reply.status_code == requests.codes.requested_range_not_satisfiable:
                part.unlink()
                return _transfer(remote, part)
            reply.raise_for_status()
            whole = reply.status_code != requests.codes.partial_content
            with part.open("wb" if whole else "ab") as stream, download_progress() as progress:
                task = progress.add_task(remote.filename, total=remote.size or None, completed=0 if whole else have)
                for chunk in reply.iter_content(_CHUNK):
                    stream.write(chunk)
                    progress.advance(task, len(chunk))
    except requests.RequestException as error:
        raise LockstepError(
            f"{remote.filename} ({megabytes(remote.size)} MB) cannot be downloaded ({type(error).__name__})",
            where=redact(remote.url).split("#")[0],
            fix="run it again: it goes on where it stopped",
        ) from None


def write_hash(versions: Path, package: str, wheel: MirroredWheel) -> None:
    """Fill in hash, file name and size of a wheel in versions.yaml, leaving every other character as it is."""
    text = versions.read_text(encoding="utf-8")
    value = f'{{sha256: "{wheel.sha256}", filename: {wheel.filename}, size: {wheel.size}}}'
    lines = text.splitlines(keepends=True)
    spot = _entry(lines, package, wheel.arch)
    problem = None if spot is not None else "the entry is not written as `{}` on the line of its architecture"
    if spot is not None:
        lines[spot] = re.sub(r"\{\s*\}", lambda _: value, lines[spot], count=1)
        changed = "".join(lines)
        try:
            found = mirror_store.declared(parse(changed, versions.name), package, wheel.arch)
            problem = None if found.sha256 == wheel.sha256 else "another entry would have been changed"
        except LockstepError as error:
            problem = str(error)
    if problem is not None:
        raise LockstepError(
            f"the wheel is mirrored, but its hash cannot be filled in: {problem}",
            where=f"{versions.name} mirror.{package}.wheels.{wheel.arch}",
            fix=f"write there {value}",
        )
    write_text(versions, changed)


def _entry(lines: list[str], package: str, arch: Arch) -> int | None:
    """Return the number of the line `<arch>: {}` under mirror, package, wheels; None where it is not there."""
    path: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        match = re.match(r"^(\s*)([\w.-]+):\s*(.*)$", line)
        if match is None:
            continue
        indent, key, rest = len(match[1]), match[2], match[3]
        path = [item for item in path if item[0] < indent] + [(indent, key)]
        names = [item[1] for item in path]
        if names == ["mirror", package, "wheels", arch.value] and re.match(r"\{\s*\}", rest):
            return number
    return None
