"""The store of mirrored wheels: wheels/mirror/<sha256>/<file name>, one folder per wheel, whatever image uses it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.files import held_lock
from lockstep.index import index_url, redact
from lockstep.matrix import Matrix
from lockstep.mirror.check import check_bytes, check_filename, check_requirements
from lockstep.mirror.spec import MirrorSpec, MirrorWheel
from lockstep.paths import WHEELS

MIRROR = WHEELS / "mirror"
IMAGE_FOLDER = "/opt/trtllm_wheels"
"""Where an image keeps its mirrored wheels, below a folder named by `MirroredWheel.key`."""


@dataclass(frozen=True)
class MirroredWheel:
    """A declared wheel whose hash is known. `path` is where the store has it or would have it. size 0: not known."""

    package: str
    arch: Arch
    sha256: str
    filename: str
    size: int
    path: Path

    @property
    def key(self) -> str:
        """The folder that holds the wheel in the store and, below IMAGE_FOLDER, in an image: its hash."""
        return self.sha256


def mirror_index() -> str:
    """Return the simple index that mirrored wheels come from: LOCKSTEP_MIRROR_INDEX, else the default index."""
    return os.environ.get("LOCKSTEP_MIRROR_INDEX") or index_url()


def alone(store: Path = MIRROR) -> AbstractContextManager[None]:
    """Let one process at a time change the store."""
    return held_lock(store / ".lock", "another command is at the store of mirrored wheels; waiting for it")


def spec_of(matrix: Matrix, package: str) -> MirrorSpec:
    """Return what is declared for a package. LockstepError where it is not."""
    if package not in matrix.mirror:
        raise LockstepError(
            f"{package} is not declared", where="versions.yaml mirror", fix=f"name one of {', '.join(matrix.mirror)}"
        )
    return matrix.mirror[package]


def declared(matrix: Matrix, package: str, arch: Arch) -> MirrorWheel:
    """Return the entry of a package for an architecture. LockstepError names the missing tag where there is none."""
    wheel = spec_of(matrix, package).wheel(arch)
    if wheel is None:
        from lockstep.mirror.check import wanted_tag

        raise LockstepError(
            f"no wheel of {package} {matrix.mirror[package].version} is declared for {wanted_tag(arch, matrix.python)}",
            where=f"versions.yaml mirror.{package}.wheels",
            fix=f"add `{arch}: {{}}` and run `make mirror`",
        )
    return wheel


def known(matrix: Matrix, package: str, arch: Arch, store: Path = MIRROR) -> MirroredWheel | None:
    """Return the wheel of a package as far as the matrix knows it; None where its hash is not known: "not mirrored"."""
    wheel = declared(matrix, package, arch)
    if wheel.sha256 is None or wheel.filename is None:
        return None
    where = f"versions.yaml mirror.{package}.wheels.{arch}.filename"
    check_filename(wheel.filename, package, matrix.mirror[package].version, arch, matrix.python, where)
    return MirroredWheel(
        package, arch, wheel.sha256, wheel.filename, wheel.size or 0, store / wheel.sha256 / wheel.filename
    )


def require(matrix: Matrix, package: str, arch: Arch, store: Path = MIRROR) -> MirroredWheel:
    """Return a wheel that is in the store, whole and as declared; a build calls this before it starts anything.

    LockstepError says which wheel is missing, from where it comes, and what to run.
    """
    wheel = known(matrix, package, arch, store)
    version = matrix.mirror[package].version
    place = "the index that LOCKSTEP_MIRROR_INDEX names"
    if not os.environ.get("LOCKSTEP_MIRROR_INDEX"):
        place = f"{place} (unset: {redact(index_url())})"
    fix = f"where {place} can be reached, run `make mirror PACKAGE={package} ARCH={arch}`"
    if wheel is None:
        raise LockstepError(
            f"the wheel of {package} {version} for {arch} is not mirrored: not even its hash is known",
            where=f"versions.yaml mirror.{package}.wheels.{arch}",
            fix=f"{fix} and commit versions.yaml",
        )
    if not wheel.path.is_file():
        raise LockstepError(
            f"the wheel {wheel.filename} (sha256 {wheel.sha256[:16]}…) is not in the mirror",
            where=str(store),
            fix=f"{fix}, or `make mirror-pull FROM=REGISTRY/NAME` where a colleague has pushed it, "
            f"or copy that machine's {wheel.path.parent.name[:16]}… folder here",
        )
    check_bytes(wheel.path, wheel.sha256, str(wheel.path.parent))
    check_requirements(wheel.path, matrix.mirror[package].requires, arch, matrix.python, f"mirror.{package}.requires")
    return wheel
