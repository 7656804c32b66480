"""What versions.yaml declares about findings: misses that are expected for good, and waivers that expire.

The models are the matrix's own (`audit:`); they are defined here, below everything that imports the matrix.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from lockstep.audit.finding import CHECKS, Finding, Level

_Why = Annotated[str, Field(min_length=10)]
_Arch = Literal["x86_64", "aarch64"]


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Patterns = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
"""One shell pattern or name, or several; `*` matches slashes too."""


def _date(text: str) -> str:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        raise ValueError(f'"{text}" is no date (YYYY-MM-DD)') from None
    return text


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Expected(_Model):
    """An abi finding that is right to be there, for good: an optional plug-in, a library for another torch.

    path: shell pattern over paths relative to site-packages. With `symbols` only those symbols are excused; with
    `library` a missing library and, where every missing one is declared, the symbols that it would have given.
    """

    backend: Patterns
    arch: _Arch | None = None
    path: str
    symbols: Patterns | None = None
    library: Patterns | None = None
    why: _Why


class Waiver(_Model):
    """Any finding of one check below one path, until a date. Afterwards the audit fails and names it.

    Without `backend` it is about whole images (layers, caches) and every venv, and may match nothing in some of them.
    """

    check: Literal["abi", "overlap", "integrity", "vendored", "metadata", "duplicates", "residue", "layers"]
    backend: Patterns | None = None
    arch: _Arch | None = None
    path: str
    why: _Why
    expires: Annotated[
        str,
        AfterValidator(_date),
        Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="the last day on which it holds"),
    ]


class AuditRules(_Model):
    """The `audit` part of versions.yaml."""

    expected: list[Expected] = []
    waivers: list[Waiver] = []


assert set(CHECKS) == set(Waiver.model_fields["check"].annotation.__args__)  # type: ignore[union-attr]


def apply_rules(
    findings: Iterable[Finding],
    rules: AuditRules,
    *,
    arch: str,
    today: datetime.date,
    backends: Sequence[str],
    checks: Iterable[str] = CHECKS,
    lacking: Collection[str] = (),
) -> list[Finding]:
    """Return the findings with those accounted for at level "waived", and failures for rules that no longer hold.

    A rule for one of `backends` (those that were audited) that matches nothing is a failure of check "waivers": either
    the fault is gone, or the path has moved and the rule hides nothing. So is a waiver past its date. Of the backends
    `lacking`, which an image carries without some of their packages, an unused rule is a note: it may be about those.
    """
    ran = set(checks)
    expected = [item for item in rules.expected if "abi" in ran and item.arch in (None, arch)]
    waivers = [item for item in rules.waivers if item.check in ran and item.arch in (None, arch)]
    used: set[tuple[int, str]] = set()
    done: list[Finding] = []
    for finding in findings:
        done += _judge(finding, expected, waivers, today, used) if finding.level == "fail" else [finding]
    every: list[Expected | Waiver] = [*expected, *waivers]
    for rule in every:
        for backend in rule.backend or ():
            if backend in backends and (id(rule), backend) not in used:
                kind = f"waiver of {rule.check}" if isinstance(rule, Waiver) else "expected miss"
                what = f"the {kind} at {rule.path} matches nothing"
                why = "the fault is gone or has moved: remove the declaration or correct its path"
                level: Level = "fail"
                if backend in lacking:
                    why, level = "it may be about a package that WITHOUT= leaves out", "note"
                done.append(Finding("waivers", "unused", backend, rule.path, what, why=why, level=level))
    return done


def _judge(
    finding: Finding,
    expected: list[Expected],
    waivers: list[Waiver],
    today: datetime.date,
    used: set[tuple[int, str]],
) -> list[Finding]:
    """Return what becomes of one failure: itself, a waived copy, or both where a rule excuses some of its symbols."""
    excused: list[Finding] = []
    left: Finding | None = finding
    for rule in expected:
        if (
            left is None
            or left.check != "abi"
            or left.venv not in rule.backend
            or not fnmatchcase(left.path, rule.path)
        ):
            continue
        held, left = _split(left, rule)
        if held is not None:
            used.add((id(rule), finding.venv))
            excused.append(held)
    for waiver in waivers:
        if left is None or waiver.check != left.check or (waiver.backend and left.venv not in waiver.backend):
            continue
        if not fnmatchcase(left.path, waiver.path):
            continue
        used.add((id(waiver), finding.venv))
        if today > datetime.date.fromisoformat(waiver.expires):
            return [*excused, replace(left, why=f"the waiver expired on {waiver.expires}: {waiver.why}")]
        return [*excused, left.waived(f"{waiver.why} (until {waiver.expires})")]
    return [*excused, left] if left is not None else excused


def _split(finding: Finding, rule: Expected) -> tuple[Finding | None, Finding | None]:
    """Return what an expected miss excuses of an abi finding, and what remains."""
    if finding.kind == "damaged":
        return None, finding
    if rule.symbols is None and rule.library is None:
        return finding.waived(rule.why), None
    if finding.kind in ("needed", "undefined", "unlinked") and rule.library is not None and finding.libraries:
        held, rest = _parted(finding.libraries, rule.library)
        if held and finding.kind == "needed":
            excused = replace(finding, libraries=held).waived(rule.why)
            what = f"needs {', '.join(rest)}, which nothing in the venv or the base provides"
            return excused, replace(finding, libraries=rest, what=what) if rest else None
        # The symbols cannot be told apart by library, so they are excused only with the last of the libraries.
        if held:
            return (finding.waived(rule.why), None) if not rest else (None, replace(finding, libraries=rest))
    if finding.kind in ("undefined", "unlinked", "version") and rule.symbols is not None:
        held, rest = _parted(finding.symbols, rule.symbols)
        if held:
            what = f"{len(rest)} undefined symbols besides the {len(held)} expected ones"
            excused = replace(finding, symbols=held).waived(rule.why)
            return excused, replace(finding, symbols=rest, what=what) if rest else None
    return None, finding


def _parted(names: tuple[str, ...], patterns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    held = tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))
    return held, tuple(name for name in names if name not in set(held))
