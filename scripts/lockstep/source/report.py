"""The result of a source check: for people as a table, for machines as JSON."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.console import Console

from lockstep.console import table
from lockstep.source.config import Accepted
from lockstep.source.findings import KINDS, Finding


class FindingRow(BaseModel):
    """One finding in the JSON report."""

    model_config = ConfigDict(extra="forbid")

    kind: str
    path: str
    line: int
    symbol: str
    what: str
    fix: str
    detail: str = ""


class ReportRow(BaseModel):
    """The JSON report. new: breaks at `to` and not at `from`; known: breaks at both; notes: no failures;
    accepted: waived, with the reason as its fix.
    """

    model_config = ConfigDict(extra="forbid")

    package: str
    to: str
    frm: str | None
    root: str
    files: int
    files_using_the_package: int
    new: list[FindingRow]
    known: list[FindingRow]
    notes: list[FindingRow]
    accepted: list[FindingRow]
    checked: dict[str, int]
    skipped: dict[str, int]
    seconds: float
    fetched_bytes: int


@dataclass(frozen=True)
class SourceReport:
    """What `check_source` found. ok: nothing new; `known` were broken at `from` already; `accepted` are waived."""

    package: str
    to: str
    frm: str | None
    root: Path
    new: tuple[Finding, ...]
    known: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    accepted: tuple[tuple[Finding, str], ...] = ()
    files: int = 0
    using: int = 0
    checked: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    fetched: int = 0

    @property
    def ok(self) -> bool:
        return not self.new

    def json(self) -> str:
        """Return the report as JSON text."""
        return ReportRow(
            package=self.package,
            to=self.to,
            frm=self.frm,
            root=self.root.name,
            files=self.files,
            files_using_the_package=self.using,
            new=[_row(item) for item in self.new],
            known=[_row(item) for item in self.known],
            notes=[_row(item) for item in self.notes],
            accepted=[_row(item, why) for item, why in self.accepted],
            checked=dict(sorted(self.checked.items())),
            skipped=dict(sorted(self.skipped.items())),
            seconds=round(self.seconds, 2),
            fetched_bytes=self.fetched,
        ).model_dump_json(indent=2)

    def show(self, out: Console) -> None:
        """Print the report for people: new findings, those known before, and one line of what was looked at."""
        for title, findings in (
            (f"breaks or changes at {self.to}", self.new),
            (f"broken at {self.frm} already", self.known),
            ("worth a look", self.notes),
        ):
            if findings:
                rows = table(title, "kind", "what", "do")
                for item in findings:
                    rows.add_row(f"{item.path}:{item.line}", item.kind, _escape(item.what), _escape(item.fix))
                out.print(rows)
                out.print()
        for item, why in self.accepted:
            out.print(
                f"accepted: {item.path}:{item.line} {item.kind} {item.symbol}: {why}", markup=False, soft_wrap=True
            )
        counts = Counter(item.kind for item in self.new)
        told = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind]) or "nothing found"
        known = f"; {len(self.known)} were there at {self.frm}" if self.frm else ""
        looked = ", ".join(f"{number} {name}" for name, number in sorted(self.checked.items()))
        out.print(f"{self.package} {self.to}: {told}{known}", markup=False, soft_wrap=True)
        out.print(
            f"{self.using} of {self.files} files use it: {looked or 'nothing of it'}", markup=False, soft_wrap=True
        )
        if self.skipped:
            out.print(
                f"not judged: {', '.join(f'{n} {what}' for what, n in sorted(self.skipped.items()))}", markup=False
            )


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def _row(finding: Finding, why: str = "") -> FindingRow:
    return FindingRow(
        kind=finding.kind,
        path=finding.path,
        line=finding.line,
        symbol=finding.symbol,
        what=finding.what,
        fix=why or finding.fix,
        detail=finding.detail,
    )


def accept(
    findings: list[Finding], accepted: tuple[Accepted, ...], where: str, today: datetime.date
) -> tuple[list[Finding], list[tuple[Finding, str]]]:
    """Part the findings that are accepted from the rest; an acceptance that is over or matches nothing is a finding."""
    left = list(findings)
    waived: list[tuple[Finding, str]] = []
    for item in accepted:
        hits = [finding for finding in findings if _matches(item, finding)]
        if not hits and not item.package:
            continue  # it may be about another package
        if not hits:
            what = f"accepted {item.kind} {item.symbol} matches no finding"
            left.append(Finding("config", where, 0, item.symbol, what, "remove it"))
        elif item.until is not None and item.until < today:
            what = f"the acceptance of {item.kind} {item.symbol} ended on {item.until}"
            left.append(Finding("config", where, 0, item.symbol, what, "fix the finding, or accept it anew"))
        else:
            waived += [(finding, item.why) for finding in hits]
            left = [finding for finding in left if finding not in hits]
    return left, waived


def _matches(item: Accepted, finding: Finding) -> bool:
    same = finding.symbol.startswith(item.symbol[:-1]) if item.symbol.endswith("*") else finding.symbol == item.symbol
    folder = item.path.rstrip("/")
    inside = not folder or finding.path == folder or finding.path.startswith(f"{folder}/")
    return item.kind == finding.kind and same and inside
