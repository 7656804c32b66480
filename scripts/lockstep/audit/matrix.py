"""What versions.yaml says that an audit needs: its rules, and per backend requirements, overrides and exclusions."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from lockstep.arch import Arch
from lockstep.audit.metadata import Reasoned
from lockstep.audit.oci import is_image, open_image
from lockstep.audit.run import Wanted
from lockstep.audit.waivers import AuditRules
from lockstep.errors import LockstepError
from lockstep.matrix import Matrix, load
from lockstep.narrow import LEFT_OUT, split_name
from lockstep.paths import VERSIONS


def rules_of(matrix: Matrix | None = None) -> AuditRules:
    """Return the `audit` part of the matrix, or none where there is no versions.yaml here."""
    if matrix is None:
        if not VERSIONS.is_file():
            return AuditRules()
        matrix = load()
    return matrix.audit


def wanted_of(arch: Arch | None, matrix: Matrix | None = None, without: Collection[str] = ()) -> dict[str, Wanted]:
    """Return what each backend was resolved from. Exclusions of the other architecture are left out.

    without: compiled packages that a narrowed image leaves out of its venvs (WITHOUT=).
    """
    if matrix is None:
        if not VERSIONS.is_file():
            return {}
        matrix = load()
    wanted = {}
    for name, backend in matrix.backends.items():
        excluded = [item for item in backend.exclude if arch is None or item.arch in (None, arch)]
        left_out = sorted({*backend.compile, *backend.optional} & {*without})
        wanted[name] = Wanted(
            requires=(*backend.requires, *backend.compile, *backend.mirror),
            overrides=tuple(Reasoned(item.requirement, item.why) for item in backend.overrides),
            excluded=(
                *(Reasoned(item.package, item.why) for item in excluded),
                *(Reasoned(package, LEFT_OUT) for package in left_out),
            ),
            left_out=tuple(left_out),
        )
    return wanted


def left_out_of(
    path: Path, arch: Arch | None, without: Collection[str], matrix: Matrix | None = None
) -> tuple[str, ...]:
    """Return the compiled packages that what lies at `path` was made without.

    An image says it itself, by its title, and WITHOUT= may only say the same: LockstepError where it does not. Of a
    venv, a root or a lock nothing but `without` tells.
    """
    if matrix is None:
        if not VERSIONS.is_file():
            return tuple(sorted(without))
        matrix = load()
    if unknown := sorted({*without} - matrix.compile.keys()):
        raise LockstepError(
            f"{unknown[0]} is not compiled from source, so nothing was made without it",
            where="WITHOUT",
            fix=f"name some of {', '.join(sorted(matrix.compile))}",
        )
    if not path.exists() or not is_image(path):
        return tuple(sorted(without))
    labels = (open_image(path, arch.docker if arch else "").config.get("config") or {}).get("Labels") or {}
    title = str(labels.get("org.opencontainers.image.title", ""))
    told = split_name(matrix, title)[1].without
    if without and tuple(sorted(without)) != told:
        raise LockstepError(
            f'the image calls itself "{title}", which leaves out {", ".join(told) or "nothing"}',
            where=str(path),
            fix=f"say WITHOUT={' '.join(told)}" if told else "leave WITHOUT= away",
        )
    return told
