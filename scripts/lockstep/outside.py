"""Wheels that no index serves, on their way into an image: where a stage finds each, and whether it is there.

A compiled wheel lies in wheels/<cache key>/, a mirrored one in wheels/mirror/<sha256>/. Rendering needs only those
names, which follow from versions.yaml and the locks; building needs the files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lockstep.arch import Arch
from lockstep.compile.environment import Target
from lockstep.compile.job import key_of
from lockstep.console import note
from lockstep.errors import LockstepError
from lockstep.layers import Layer
from lockstep.lock import LockedWheel
from lockstep.matrix import Matrix
from lockstep.paths import ROOT

STAGE_FOLDER = "/lockstep/wheels"
"""Where a stage has the wheels that it binds: docker/build/install.py looks below it."""


@dataclass(frozen=True)
class Binding:
    """What a stage needs for one wheel: the line that install.py reads, and the folder to bind where there is one."""

    line: str
    source: str = ""
    target: str = ""


def binding(matrix: Matrix, wheel: LockedWheel, arch: Arch, root: Path = ROOT) -> Binding:
    """Return how a stage gets a compiled or mirrored wheel. Pure: reads versions.yaml's locks and nothing else."""
    if wheel.origin == "compile":
        key = key_of(matrix, _target(wheel, arch), root).digest()
        return Binding(f"store:{key}", f"wheels/{key}", f"{STAGE_FOLDER}/{key}")
    if not wheel.sha256:
        return Binding(f"missing:{wheel.requirement()}")
    return Binding(f"mirror:{wheel.sha256}", f"wheels/mirror/{wheel.sha256}", f"{STAGE_FOLDER}/{wheel.sha256}")


def _target(wheel: LockedWheel, arch: Arch) -> Target:
    return Target(wheel.name, wheel.built_for, arch)


def require_wheels(matrix: Matrix, layers: Iterable[Layer], arch: Arch, *, build: bool) -> None:
    """Check that every compiled and mirrored wheel of an image is at hand, before any of it is built.

    build: compile what the store lacks, instead of stopping. LockstepError names every wheel that is missing, and
    what to run for each.
    """
    from lockstep.compile import store  # loads lief, which takes longer than rendering
    from lockstep.mirror.store import require

    wheels = [wheel for layer in layers for wheel in layer.wheels if wheel.origin != "index"]
    faults: list[LockstepError] = []
    lacking: list[Target] = []
    for wheel in wheels:
        try:
            if wheel.origin == "mirror":
                require(matrix, wheel.name, arch)
            elif store.find(key_of(matrix, _target(wheel, arch))) is None:
                lacking.append(_target(wheel, arch))
        except LockstepError as error:
            faults.append(error)
    if not build:
        faults += [_not_built(matrix, target) for target in dict.fromkeys(lacking)]
    if faults:
        raise LockstepError("\n  also ".join(str(fault) for fault in faults))
    _compile(matrix, list(dict.fromkeys(lacking)))


def _not_built(matrix: Matrix, target: Target) -> LockstepError:
    return LockstepError(
        f"the wheel of {target.package} {matrix.compile[target.package].version} for {target.line} on {target.arch} "
        "is not built",
        where="wheels/",
        fix=f"run `make wheels PACKAGE={target.package} LINE={target.line} ARCH={target.arch}`, "
        f"say WHEELS=1 to build it with the image, or WITHOUT={target.package} for an image that lacks it",
    )


def _compile(matrix: Matrix, lacking: list[Target]) -> None:
    if not lacking:
        return
    from lockstep.compile import run
    from lockstep.engine import ensure_engine

    engine = ensure_engine()
    for number, target in enumerate(lacking, start=1):
        note(f"wheel {number} of {len(lacking)}: {target}")
        run.build(matrix, target, engine, run.Options())
