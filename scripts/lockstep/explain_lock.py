"""Gather what `explain` needs: the matrix, the lock, the wheels' requirements, the newest release."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.utils import canonicalize_name

from lockstep.arch import Arch
from lockstep.audit.wheels import locked_cards
from lockstep.console import warn
from lockstep.errors import LockstepError
from lockstep.explain import Explanation, explain, newest_release
from lockstep.index import best_wheel, files_of
from lockstep.lock import read_lock
from lockstep.matrix import load


def explain_locked(
    package: str, backend: str, arch: Arch, *, ask_index: bool = True, without: Sequence[str] = ()
) -> Explanation:
    """Explain a package of a backend from its lock. LockstepError where there is no such backend or no lock.

    without: compiled packages that an image leaves out (WITHOUT=); LockstepError where it has no such.
    """
    matrix = load()
    if backend not in matrix.backends:
        raise LockstepError(
            f'there is no backend "{backend}"', where="versions.yaml", fix=f"name one of {', '.join(matrix.backends)}"
        )
    declared = matrix.backends[backend]
    possible = {*declared.compile, *declared.optional} - matrix.left_out(backend, arch)
    for name in without:
        if name not in possible:
            fix = f"name some of {', '.join(sorted(possible))}" if possible else "leave WITHOUT= away"
            raise LockstepError(f"{name} is no compiled package of {backend}", where="WITHOUT", fix=fix)
    cards = locked_cards(read_lock(backend, arch).wheels)
    return explain(
        package,
        [card.installed() for card in cards],
        declared,
        matrix.lines.get(declared.line, {}),
        name=backend,
        arch=arch,
        python=matrix.python,
        newest=_newest(canonicalize_name(package), arch, matrix.python) if ask_index else "",
        without=without,
    )


def _newest(package: str, arch: Arch, python: str) -> str:
    """Return the newest release that has a wheel for the platform, "" where the index cannot say."""
    try:
        files = files_of(package)
    except LockstepError as error:
        warn(f"the newest release is not known: {error}")
        return ""
    by_version: dict[str, list[str]] = {}
    for item in files:
        by_version.setdefault(item.version, []).append(item.filename)
    return newest_release(version for version, names in by_version.items() if best_wheel(names, arch, python))
