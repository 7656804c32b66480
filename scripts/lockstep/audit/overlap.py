"""Paths that two wheels write. With different bytes, what is on disk depends on who was installed last (CASES A3).

The same question is asked twice: of the RECORDs of a venv, and, before anything is downloaded, of the central
directories of the wheels that a lock names.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockstep.audit.finding import Finding


@dataclass(frozen=True, slots=True)
class Owned:
    """Who writes a path, and a fingerprint of what: equal fingerprints mean equal bytes, "" means unknown."""

    owner: str
    fingerprint: str


@dataclass(frozen=True)
class Overlap:
    """Two owners and the paths that both write; `different` are those whose bytes differ or are not known to agree."""

    first: str
    second: str
    paths: tuple[str, ...]
    different: tuple[str, ...]


def overlaps(owned: Iterable[tuple[str, Mapping[str, str]]]) -> list[Overlap]:
    """Return the overlaps between (owner, {path: fingerprint}) pairs, by owners."""
    writers: dict[str, list[Owned]] = {}
    for owner, files in owned:
        for path, fingerprint in files.items():
            writers.setdefault(path, []).append(Owned(owner, fingerprint))
    shared: dict[tuple[str, str], list[tuple[str, bool]]] = {}
    for path, owners in writers.items():
        for number, one in enumerate(owners):
            for other in owners[number + 1 :]:
                equal = one.fingerprint == other.fingerprint != ""
                low, high = sorted((one.owner, other.owner))
                shared.setdefault((low, high), []).append((path, equal))
    return [
        Overlap(
            first,
            second,
            tuple(sorted(path for path, _ in found)),
            tuple(sorted(path for path, equal in found if not equal)),
        )
        for (first, second), found in sorted(shared.items())
    ]


def check_overlap(owned: Iterable[tuple[str, Mapping[str, str]]], venv: str = "") -> list[Finding]:
    """Return a finding per pair of owners: a failure where bytes differ, a note where all are the same."""
    findings = []
    for item in overlaps(owned):
        pair = f"{item.first} and {item.second}"
        top = common_folder(item.different or item.paths)
        if item.different:
            what = f"{pair} write {len(item.paths)} common paths, {len(item.different)} of them with different bytes"
            what += f": {_some(item.different)}"
            why = "which bytes are on disk depends on the order of installation, and removing one breaks the other"
            findings.append(Finding("overlap", "different", venv, top, what, item.first, why=why))
        else:
            what = f"{pair} write {len(item.paths)} common paths with equal bytes: {_some(item.paths)}"
            findings.append(Finding("overlap", "equal", venv, top, what, item.first, level="note"))
    return findings


def common_folder(paths: Iterable[str]) -> str:
    """Return the deepest folder that holds all the paths; of one path, the path itself."""
    names = list(paths)
    return names[0] if len(names) == 1 else posixpath.commonpath(names)


def _some(paths: tuple[str, ...], count: int = 3) -> str:
    more = f" and {len(paths) - count} more" if len(paths) > count else ""
    return f"{', '.join(paths[:count])}{more}"
