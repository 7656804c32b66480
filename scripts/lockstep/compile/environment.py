"""The build environment of a compiled wheel: the line's torch, the CUDA compiler, and what the build imports, locked.

It is resolved like a backend, by the same code, into compile/<package>/lock.<line>.<arch>.txt.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from lockstep.arch import Arch
from lockstep.compile.spec import CompileSpec
from lockstep.errors import LockstepError
from lockstep.files import write_text
from lockstep.lock import Lock, format_lock, inputs_of, parse_lock
from lockstep.matrix import Backend, Matrix
from lockstep.paths import ROOT
from lockstep.resolve import Upgrade, resolve

# What nvcc needs beside itself since CUDA 13: the optimizer, its own headers, the runtime's, and CCCL (which
# cuda_fp16.h and torch's headers include).
_CUDA_WHEELS = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl")


@dataclass(frozen=True, order=True)
class Target:
    """One wheel to build: a package on a torch line for an architecture."""

    package: str
    line: str
    arch: Arch

    def __str__(self) -> str:
        return f"{self.package} for {self.line} on {self.arch}"


def targets(matrix: Matrix, arch: Arch) -> list[Target]:
    """Return every wheel that some backend installs, each once."""
    found = {
        Target(package, backend.line, arch)
        for name, backend in matrix.backends.items()
        for package in {*backend.compile, *backend.optional} - matrix.left_out(name, arch)
    }
    return sorted(found)


def spec_of(matrix: Matrix, package: str) -> CompileSpec:
    """Return what is declared for a package. LockstepError where it is not."""
    if package not in matrix.compile:
        raise LockstepError(
            f"{package} is not declared", where="versions.yaml compile", fix=f"name one of {', '.join(matrix.compile)}"
        )
    return matrix.compile[package]


def lock_path(target: Target, root: Path = ROOT) -> Path:
    """Return where the lock of a build environment lies."""
    return root / "compile" / target.package / f"lock.{target.line}.{target.arch}.txt"


def _as_backend(matrix: Matrix, target: Target) -> Matrix:
    """Return the matrix with the build environment as one more backend, so that `resolve` can resolve it."""
    spec = spec_of(matrix, target.package)
    pins = matrix.lines[target.line]
    requires = list(spec.build_requires)
    # A package without CUDA code that does not require torch is plain Python or C: torch's gigabytes would only cost.
    if "torch" in pins and (spec.cuda or any(Requirement(text).name == "torch" for text in spec.requires)):
        requires.append(f"torch=={pins['torch']}")
    if spec.cuda:
        if int(spec.cuda.split(".")[0]) < 13:
            raise LockstepError(
                f"CUDA {spec.cuda} has no compiler among its wheels that Lockstep can lay out",
                where=f"versions.yaml compile.{target.package}.cuda",
                fix="use 13.0 or later, or build on BASE=cuda",
            )
        requires += [f"{name}=={spec.cuda}.*" for name in _CUDA_WHEELS]
    return matrix.model_copy(update={"backends": {_name(target): Backend(line=target.line, requires=requires)}})


def _name(target: Target) -> str:
    return f"compile-{target.package}"


def lock(matrix: Matrix, target: Target, upgrade: Upgrade, root: Path = ROOT) -> bool:
    """Resolve a build environment and write its lock; return whether the file changed."""
    path = lock_path(target, root)
    try:
        previous = parse_lock(path.read_text(encoding="utf-8"), _name(target), target.arch, path.name)
    except (OSError, LockstepError):
        previous = None  # relocking is the way out of a damaged lock
    as_backend = _as_backend(matrix, target)
    if previous and previous.inputs == inputs_of(as_backend, _name(target), target.arch) and upgrade == Upgrade():
        return False  # what is locked would be preferred anyway
    made = resolve(as_backend, _name(target), target.arch, previous=previous, others=[], upgrade=upgrade)
    return write_text(path, format_lock(made))


def read(matrix: Matrix, target: Target, root: Path = ROOT) -> Lock:
    """Read the lock of a build environment. LockstepError where it is missing, damaged or out of date."""
    path = lock_path(target, root)
    where = str(path.relative_to(root))
    fix = f"run `make lock-wheels PACKAGE={target.package}`"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LockstepError("there is no lock of the build environment", where=where, fix=fix) from None
    found = parse_lock(text, _name(target), target.arch, where)
    if found.inputs != inputs_of(_as_backend(matrix, target), _name(target), target.arch):
        raise LockstepError("versions.yaml has changed since this lock was made", where=where, fix=fix)
    return found
