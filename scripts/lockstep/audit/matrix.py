"""What versions.yaml says that an audit needs: its rules, and per backend requirements, overrides and exclusions."""

from __future__ import annotations

from lockstep.arch import Arch
from lockstep.audit.metadata import Reasoned
from lockstep.audit.run import Wanted
from lockstep.audit.waivers import AuditRules
from lockstep.matrix import Matrix, load
from lockstep.paths import VERSIONS


def rules_of(matrix: Matrix | None = None) -> AuditRules:
    """Return the `audit` part of the matrix, or none where there is no versions.yaml here."""
    if matrix is None:
        if not VERSIONS.is_file():
            return AuditRules()
        matrix = load()
    return matrix.audit


def wanted_of(arch: Arch | None, matrix: Matrix | None = None) -> dict[str, Wanted]:
    """Return what each backend was resolved from. Exclusions of the other architecture are left out."""
    if matrix is None:
        if not VERSIONS.is_file():
            return {}
        matrix = load()
    wanted = {}
    for name, backend in matrix.backends.items():
        excluded = [item for item in backend.exclude if arch is None or item.arch in (None, arch)]
        wanted[name] = Wanted(
            requires=(*backend.requires, *backend.compile, *backend.mirror),
            overrides=tuple(Reasoned(item.requirement, item.why) for item in backend.overrides),
            excluded=tuple(Reasoned(item.package, item.why) for item in excluded),
        )
    return wanted
