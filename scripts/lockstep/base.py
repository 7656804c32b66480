"""The bootstrap base: a Debian root file system from locked packages, the same bytes wherever and whenever made.

There is one root per role and architecture. `runtime` is what images are FROM; `builder` has on top what install stages
need, and `compile` what compile stages need; neither of the two reaches an image.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path

from lockstep import base_pyc, base_tar
from lockstep.arch import Arch, host_arch
from lockstep.console import megabytes, note
from lockstep.debian import mmdebstrap, require_mmdebstrap
from lockstep.debs import DebLock, apt_state, fetch_debs, local_repository, lock_base, read_lock
from lockstep.disk import require_disk
from lockstep.errors import LockstepError
from lockstep.files import held_lock, replacing, sha256_file, write_text
from lockstep.matrix import Matrix, load
from lockstep.paths import BUILD, ROOT, state_dir

LOCKS = ROOT / "bases" / "bootstrap"

# Part of the key of every base: raise it when this module or base_tar makes other bytes from the same lock.
_RECIPE = "3"


class Role(StrEnum):
    """What a root file system is for."""

    RUNTIME = "runtime"
    BUILDER = "builder"
    COMPILE = "compile"


def lock_path(arch: Arch, role: Role) -> Path:
    """Return the file that locks a base."""
    return LOCKS / f"{role}.{arch}.txt"


def wanted_packages(matrix: Matrix, role: Role) -> tuple[str, ...]:
    """Return the packages that versions.yaml asks for in a role, sorted, each once."""
    base = matrix.bases.bootstrap
    extra = {Role.RUNTIME: [], Role.BUILDER: base.builder_packages, Role.COMPILE: base.compile_packages}[role]
    return tuple(sorted({*base.packages, *extra}))


def roles(matrix: Matrix) -> tuple[Role, ...]:
    """Return the roles that this matrix needs: `compile` only where versions.yaml lists packages for it."""
    return tuple(role for role in Role if role is not Role.COMPILE or matrix.bases.bootstrap.compile_packages)


def lock_bases(matrix: Matrix) -> list[Path]:
    """Resolve and write the lock of every role and architecture; return the files that changed.

    The roles of one architecture are resolved against the same lists, so what they share has one version.
    """
    made: dict[Path, str] = {}
    suite = matrix.bases.bootstrap.suite
    for arch in matrix.targets():
        note(f"asking the Debian archive for {suite}, {arch}")
        with apt_state(suite, arch) as state:
            for role in roles(matrix):
                made[lock_path(arch, role)] = lock_base(suite, wanted_packages(matrix, role), arch, state).text()
    # Written when all are resolved, so that a failure leaves the old set whole.
    return [path for path, text in made.items() if write_text(path, text)]


def base_lock(arch: Arch, role: Role, matrix: Matrix) -> DebLock:
    """Return the lock of a base; LockstepError where there is none or versions.yaml asks for something else by now."""
    path = lock_path(arch, role)
    lock = read_lock(path)
    if lock.requested != wanted_packages(matrix, role) or lock.suite != matrix.bases.bootstrap.suite:
        raise LockstepError(
            "versions.yaml asks for other Debian packages than are locked",
            where=str(path.relative_to(ROOT)),
            fix="run `make lock-base`",
        )
    return lock


def base_key(lock: DebLock, epoch: int) -> str:
    """Return what identifies a base: equal keys mean equal bytes."""
    text = f"{_RECIPE}\n{epoch}\n{sha256_file(base_pyc.COMPILER)}\n{lock.text()}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def make_base(arch: Arch, role: Role, matrix: Matrix | None = None) -> Path:
    """Return build/base/KEY/rootfs.tar of a role and architecture, making it unless some checkout has made it before.

    KEY is `base_key`; the file is also kept in state_dir()/base/KEY/, where every checkout of this machine finds it.
    """
    matrix = matrix or load()
    lock = base_lock(arch, role, matrix)
    key = base_key(lock, matrix.epoch)
    here = BUILD / "base" / key / "rootfs.tar"
    if here.is_file():
        return here
    kept = state_dir() / "base" / key / "rootfs.tar"
    with held_lock(kept.parent / "lock", f"another command is making the {role.value} base for {arch}; waiting for it"):
        if not kept.is_file():
            _make(lock, matrix, kept, str(lock_path(arch, role).relative_to(ROOT)), role)
    _forget_old(kept.parent.parent, key)
    _forget_old(BUILD / "base", key)
    with replacing(here) as part:
        part.unlink()
        try:
            part.hardlink_to(kept)
        except OSError:
            shutil.copyfile(kept, part)
    return here


def make_bases(wanted: Sequence[tuple[Arch, Role]], matrix: Matrix | None = None) -> list[Path]:
    """Return `make_base` of several, made at the same time: a package's installation uses one core."""
    matrix = matrix or load()
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda pair: make_base(pair[0], pair[1], matrix), wanted))


# A lock that moves on leaves its bases behind, 375 MB each; another checkout may still use one of them.
_KEEP_SECONDS = 30 * 24 * 3600


def _forget_old(folder: Path, key: str) -> None:
    """Remove the bases in `folder` that nobody has made or asked for in 30 days; `key` is asked for now."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.name == key:
            os.utime(entry)
        elif time.time() - entry.stat().st_mtime > _KEEP_SECONDS:
            shutil.rmtree(entry, ignore_errors=True)


def _make(lock: DebLock, matrix: Matrix, target: Path, where: str, role: Role) -> None:
    foreign = lock.arch is not host_arch()
    require_mmdebstrap("making the base")
    native = _native_python(lock, matrix, where) if foreign else None
    began = time.monotonic()
    if foreign:
        from lockstep.engine_binfmt import ensure_binfmt

        ensure_binfmt(lock.arch)
    paths = fetch_debs(lock, where)
    size = sum(deb.size for deb in lock.debs)
    # Unpacked, Debian's packages are about four times their size (measured on this set); the root is on disk as a
    # tree and twice as an archive for a moment.
    require_disk(state_dir(), 12 * size, f"making the {role} base")
    note(f"making the {role} base for {lock.arch} from {len(lock.debs)} packages ({megabytes(size)} MB)")
    with tempfile.TemporaryDirectory(prefix=".make-", dir=target.parent) as folder:
        repository = Path(folder) / "debs"
        repository.mkdir()
        local_repository(lock, paths, repository)
        raw = Path(folder) / "raw.tar"
        mmdebstrap(
            "--variant=essential",
            f"--architectures={lock.arch.docker}",
            # Under emulation mmdebstrap would look for its own way to emulate; ensure_binfmt has seen to it.
            *(("--skip=check/qemu",) if foreign else ()),
            f"--include={','.join(deb.name for deb in lock.debs)}",
            "--aptopt=Acquire::Languages none",
            "--dpkgopt=force-unsafe-io",  # no fsync for each file of a tree that is thrown away
            lock.suite,
            raw,
            # copy: puts the files where the new root's dpkg sees them; the lock has vouched for their bytes.
            f"deb [trusted=yes] copy:{repository} ./",
            epoch=matrix.epoch,
            workdir=Path(folder),
        )
        stdlib = Path(folder) / "stdlib"
        stdlib.mkdir()
        bytecode = base_pyc.compile_stdlib(raw, native or raw, matrix.python, stdlib)
        with replacing(target) as part:
            installed = base_tar.normalise(raw, part, matrix.epoch, bytecode)
            _refuse_others(lock, installed, where)
            part.chmod(0o644)
    note(f"made the {role} base for {lock.arch} in {time.monotonic() - began:.0f} s")


def _native_python(lock: DebLock, matrix: Matrix, where: str) -> Path:
    """Return this machine's own base, whose Python compiles the other's library: it must be the same Python."""
    own = base_lock(host_arch(), Role.RUNTIME, matrix)
    name = f"python{matrix.python}"
    versions = {next((deb.version for deb in each.debs if deb.name == name), "none") for each in (lock, own)}
    if len(versions) > 1:
        raise LockstepError(
            f"the bases of the two architectures have different versions of {name}: {' and '.join(sorted(versions))}",
            where=where,
            fix="run `make lock-base` when the archive has the same for both",
        )
    return make_base(host_arch(), Role.RUNTIME, matrix)


def _refuse_others(lock: DebLock, installed: list[base_tar.Installed], where: str) -> None:
    """The base must hold exactly what is locked: nothing more, nothing less."""
    there = {(deb.name, deb.version, deb.arch) for deb in installed}
    locked = {(deb.name, deb.version, deb.arch) for deb in lock.debs}
    if there != locked:
        odd = ", ".join(sorted(name for name, _, _ in there ^ locked))
        raise LockstepError(f"the root holds other packages than are locked: {odd}", where=where)


def clean_bases() -> None:
    """Remove every made base and downloaded package of this machine."""
    for name in ("base", "debs"):
        shutil.rmtree(state_dir() / name, ignore_errors=True)
    shutil.rmtree(BUILD / "base", ignore_errors=True)
