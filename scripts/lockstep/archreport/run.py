"""`make arch-report`: gather both architectures of an image, compare, and print."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.markup import escape

from lockstep.archreport.compare import ArchReport, judge
from lockstep.archreport.facts import imaged, planned
from lockstep.console import out, table
from lockstep.matrix import Matrix
from lockstep.ship.describe import base_of


def report_on(matrix: Matrix, image: str, *, scripts: bool = False, images: bool = True) -> ArchReport:
    """Return the report on an image.

    scripts: also compare console scripts by the wheels themselves, which asks the index. images: also look into what
    was built here; where only one architecture was, a note says so.
    """
    sides = planned(matrix, image, scripts=scripts)
    notes = []
    if images:
        built = [(arch, imaged(image, arch, base=base_of(image, arch))) for arch in matrix.targets()]
        there = [side for _, side in built if side is not None]
        lacking = [arch.value for arch, side in built if side is None]
        if not lacking:
            sides += there
        else:
            notes.append(f"compared by locks and Dockerfile alone: no image for {' and '.join(lacking)} was built here")
    if not scripts and not any(side.seen == "image" for side in sides):
        notes.append("console scripts were not looked at: SCRIPTS=1 reads them from the wheels on the index")
    return judge(matrix, image, sides, notes)


def print_report(report: ArchReport) -> None:
    """Print the table of differences, then what was compared."""
    if report.differences:
        rows = table("what", "venv", "name", *report.arches, "seen in", "why")
        for item in report.differences:
            values = [value or "-" for _, value in item.values]
            cells = [item.thing.what, item.thing.venv or "-", item.thing.name, *values, " and ".join(item.seen)]
            rows.add_row(*(escape(cell) for cell in (*cells, item.why or "UNDECLARED")))
        out.print(rows)
    counted = ", ".join(
        f"{what} {' / '.join(str(row[arch]) for arch in report.arches)}" for what, row in sorted(report.counts.items())
    )
    verdict = f"{len(report.differences)} differences, {len(report.undeclared)} of them undeclared"
    out.print(f"{report.image} on {' and '.join(report.arches)}: {verdict}. Compared: {counted}", soft_wrap=True)
    for text in report.notes:
        out.print(f"note: {text}", markup=False, soft_wrap=True)


def print_faults(reports: Sequence[ArchReport]) -> None:
    """Print one sentence for each fault, each once however many images have it, and what to write."""
    undeclared = dict.fromkeys((item.sentence(), item.entry()) for report in reports for item in report.undeclared)
    for sentence, entry in undeclared:
        out.print(f"fault: {sentence}; mend it, or add to arch_differences: {entry}", markup=False, soft_wrap=True)
    for sentence in dict.fromkeys(text for report in reports for text in report.unused):
        out.print(f"fault: {sentence}", markup=False, soft_wrap=True)


def as_json(reports: Sequence[ArchReport]) -> str:
    """Return the reports as JSON."""
    data = {"ok": all(item.ok for item in reports), "images": [item.plain() for item in reports]}
    return json.dumps(data, indent=2) + "\n"
