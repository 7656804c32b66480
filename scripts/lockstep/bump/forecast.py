"""The sections of a bump's report that come from the wheels: moves, rules, findings, ABI, patches, source trees."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.arch import Arch
from lockstep.audit.abi import check_abi
from lockstep.audit.base import trixie
from lockstep.audit.elf import Elf
from lockstep.audit.finding import Finding
from lockstep.audit.matrix import wanted_of
from lockstep.audit.waivers import apply_rules
from lockstep.audit.wheel_abi import objects_at_hand, objects_of
from lockstep.audit.wheels import Card, check_cards, locate, locked_cards
from lockstep.bump.follow import versions_with_wheel
from lockstep.bump.model import FindingRow, MoveRow, PatchRow, RuleRow, SourceRow
from lockstep.bump.rules import Side, judge_rules
from lockstep.bump.workspace import Locks
from lockstep.errors import LockstepError
from lockstep.lock import LockedWheel
from lockstep.lockdiff import moves
from lockstep.matrix import Matrix
from lockstep.patches import forecast, packages
from lockstep.paths import ROOT
from lockstep.source import check_source

_CHECKS = ("overlap", "metadata")
# Without every library at hand only these can be judged: the rest may be given by a wheel that is not.
_JUDGED = ("damaged", "machine", "version", "undefined", "python")
_NUMBER = re.compile(r"\d[\w.+-]*")


def move_rows(matrix: Matrix, before: Locks, after: Locks) -> list[MoveRow]:
    """Return what moved, once per backend where it moved alike on every architecture."""
    grouped: dict[tuple[str, str, str | None, str | None], list[Any]] = {}
    order = matrix.targets()
    for move in sorted(moves(matrix, before, after), key=lambda item: (item.backend, order.index(item.arch))):
        grouped.setdefault((move.backend, move.package, move.before, move.after), []).append(move)
    return [
        MoveRow(
            backend=backend,
            arches=[move.arch.value for move in found],
            package=package,
            before=old,
            after=new,
            kind=found[0].kind,
            declared=found[0].why,
            bytes_before=_size(before, found[0], package),
            bytes_after=_size(after, found[0], package),
        )
        for (backend, package, old, new), found in grouped.items()
    ]


def _size(locks: Locks, move: Any, package: str) -> int:
    lock = locks.get((move.backend, move.arch))
    wheel = lock.by_name().get(package) if lock else None
    return wheel.size if wheel else 0


class Cards:
    """The wheels' cards, each read once."""

    def __init__(self) -> None:
        self._known: dict[LockedWheel, Card] = {}

    def of(self, wheels: Sequence[LockedWheel]) -> list[Card]:
        """Return the cards of some wheels, in their order."""
        missing = [wheel for wheel in dict.fromkeys(wheels) if wheel not in self._known]
        self._known.update(zip(missing, locked_cards(missing), strict=True))
        return [self._known[wheel] for wheel in wheels]


def rule_rows(old: Matrix, new: Matrix, before: Locks, after: Locks, name: str, cards: Cards) -> list[RuleRow]:
    """Return the rules of one backend, judged on the first architecture."""
    arch = new.targets()[0]

    def side(matrix: Matrix, locks: Locks) -> Side:
        found = cards.of(locks[name, arch].wheels)
        return Side(matrix, name, arch, [card.installed() for card in found])

    versions = cache(lambda package: versions_with_wheel(package, arch, new.python))
    return judge_rules(side(old, before), side(new, after), versions)


def finding_rows(old: Matrix, new: Matrix, before: Locks, after: Locks, name: str, cards: Cards) -> list[FindingRow]:
    """Return the overlaps and unmet requirements of a backend's new locks, waived ones too."""
    rows: dict[tuple[str, str, str], FindingRow] = {}
    for arch in new.targets():
        if (name, arch) not in after:
            continue
        known = (
            {_plain(item) for item in _findings(old, before, name, arch, cards)} if (name, arch) in before else set()
        )
        for item in _findings(new, after, name, arch, cards):
            _add(rows, item, name, arch, _plain(item) in known)
    return list(rows.values())


def _findings(matrix: Matrix, locks: Locks, name: str, arch: Arch, cards: Cards) -> list[Finding]:
    wanted = wanted_of(arch, matrix).get(name)
    found = check_cards(cards.of(locks[name, arch].wheels), arch, matrix.python, backend=name, wanted=wanted)
    found = [item for item in found if item.check in _CHECKS]
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return apply_rules(found, matrix.audit, arch=arch, today=today, backends=[name], checks=_CHECKS)


def _plain(item: Finding) -> tuple[str, str, str]:
    """Return what makes a finding the same one under another version."""
    return (item.check, item.kind, _NUMBER.sub("#", item.what))


def _add(rows: dict[tuple[str, str, str], FindingRow], item: Finding, name: str, arch: Arch, known: bool) -> None:
    key = (item.check, item.kind, item.what)
    seen = rows.get(key)
    rows[key] = FindingRow(
        backend=name,
        arches=[*(seen.arches if seen else []), arch.value],
        check=item.check,
        kind=item.kind,
        what=item.what,
        why=item.why,
        level=item.level,
        known=known,
    )


def abi_rows(matrix: Matrix, before: Locks, after: Locks, name: str, budget: int) -> tuple[list[FindingRow], str, str]:
    """Return the abi findings of the wheels that changed, what was not looked at, and why nothing was, if so.

    budget: bytes that may be downloaded for changed wheels whose libraries are not known, smallest first.
    """
    rows: dict[tuple[str, str, str], FindingRow] = {}
    unknown: dict[str, int] = {}
    judged = 0
    for arch in matrix.targets():
        if (name, arch) not in after:
            continue
        old = set(before[name, arch].wheels) if (name, arch) in before else set()
        wheels = after[name, arch].wheels
        changed = [wheel for wheel in wheels if wheel not in old]
        objects: dict[str, Elf] = {}
        broken: dict[str, str] = {}
        owners: dict[str, str] = {}
        for wheel in sorted(wheels, key=lambda item: item.size):
            tree = None if wheel.filename.endswith("-none-any.whl") else objects_at_hand(wheel)
            if tree is None and wheel in changed and not wheel.filename.endswith("-none-any.whl"):
                source = locate(wheel) if wheel.size <= budget else None
                if source is None:
                    unknown[f"{wheel.name} {wheel.version} on {arch}"] = wheel.size
                    continue
                budget -= wheel.size
                tree = objects_of(source)
            if tree is None:
                continue
            objects |= tree.elves
            broken |= tree.broken
            owners |= dict.fromkeys((*tree.elves, *tree.broken), f"{wheel.name} {wheel.version}")
        mine = {f"{wheel.name} {wheel.version}" for wheel in changed}
        if not mine & set(owners.values()):
            continue
        judged += len(mine & set(owners.values()))
        torch = next((wheel.version for wheel in wheels if wheel.name == "torch"), "")
        found = check_abi(objects, broken, trixie(arch), arch, venv=name, owner=owners.__getitem__, torch=torch)
        found = [item for item in found if item.wheel in mine and (item.kind in _JUDGED or item.level == "note")]
        today = datetime.datetime.now(tz=datetime.UTC).date()
        for item in apply_rules(found, matrix.audit, arch=arch, today=today, backends=[], checks=("abi",)):
            _add(rows, item, name, arch, False)
    lacking = ", ".join(f"{label} ({size / 1e6:.0f} MB)" for label, size in unknown.items())
    if not judged:
        why = f"none of the changed wheels with libraries is on this machine: {lacking}" if lacking else (
            "no wheel that changed holds libraries"
        )  # fmt: skip
        return [], "", f"{why}; ABI_MB=<megabytes> lets it fetch them" if lacking else why
    return list(rows.values()), f"not looked at, as they are not on this machine: {lacking}" if lacking else "", ""


def patch_rows(matrix: Matrix, found: Iterable[MoveRow], after: Locks) -> tuple[list[PatchRow], int]:
    """Return how each patch of a moved package stands on its new version, and the bytes fetched for it."""
    rows: list[PatchRow] = []
    fetched = 0
    known = set(packages())
    for package, version, name in dict.fromkeys((row.package, row.after, row.backend) for row in found):
        if package not in known or version is None or any(row.package == package for row in rows):
            continue
        arch = matrix.targets()[0]
        result = forecast(package, version, arch, matrix.python, frozenset(after[name, arch].by_name()))
        fetched += result.fetched
        rows += [
            PatchRow(
                package=package,
                version=version,
                id=row.id,
                file=row.file,
                state=row.state,
                stops=row.stops,
                why=row.why,
            )
            for row in result.rows
        ]
    return rows, fetched


def source_rows(matrix: Matrix, found: Iterable[MoveRow]) -> tuple[list[SourceRow], list[str], int]:
    """Check the downstream trees against what moved; return findings, what was looked at or why not, and bytes."""
    rows: list[SourceRow] = []
    said: list[str] = []
    fetched = 0
    moved = {row.package: (row.before, row.after) for row in found if row.before and row.after}
    for tree in matrix.downstream:
        folder = _folder(tree.path)
        for package in tree.packages:
            if package not in moved:
                continue
            before, after = moved[package]
            try:
                result = check_source(folder, package, str(after), before)
            except LockstepError as error:
                said.append(f"{tree.path} against {package} {after}: not checked: {error}")
                continue
            fetched += result.fetched
            said.append(f"{tree.path} against {package} {after}: {result.using} of {result.files} files use it")
            for note, findings in ((False, result.new), (True, result.notes)):
                rows += [
                    SourceRow(
                        tree=tree.path,
                        package=package,
                        kind=item.kind,
                        path=item.path,
                        line=item.line,
                        what=item.what,
                        fix=item.fix,
                        note=note,
                    )
                    for item in findings
                ]
    return rows, said, fetched


def _folder(path: str) -> Path:
    expanded = Path(path).expanduser()
    return expanded if expanded.is_absolute() else ROOT / expanded


def guarded(section: str, failed: dict[str, str], compute: Callable[[], None]) -> None:
    """Run one section; where the index or a wheel fails it, the report says so instead of the whole bump ending."""
    try:
        compute()
    except LockstepError as error:
        failed[section] = str(error)
