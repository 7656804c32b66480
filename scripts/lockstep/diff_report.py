"""Print the difference between two images."""

from __future__ import annotations

from collections.abc import Iterable

from rich.markup import escape

from lockstep.audit.abi import demangle
from lockstep.console import megabytes, out, table
from lockstep.diff import CLASSES, Change, Difference

_SYMBOLS = 3


def print_difference(found: Difference) -> None:
    """Print what changed, part by part; a part without changes is one line."""
    out.print(escape(f"A: {found.a}\nB: {found.b}"), soft_wrap=True)
    out.print(
        f"layers: {found.layers_kept} kept, {found.layers_gone} gone, {found.layers_new} new; "
        f"{megabytes(found.bytes_a)} MB before, {megabytes(found.bytes_b)} MB after, "
        f"{megabytes(found.bytes_new)} MB to fetch on top of A",
        soft_wrap=True,
    )
    _part("packages", found.packages)
    _part("settings", found.settings)
    _part("patches", found.patches)
    names = demangle({name for change in found.symbols for name in f"{change.before}, {change.after}".split(", ")})
    _part("undefined symbols", (_readable(change, names) for change in found.symbols))
    for name in CLASSES:
        for probe in found.probes[name]:
            out.print(escape(f"probe, {name}: {probe}"), soft_wrap=True)
    if not any(found.probes.values()):
        out.print("probes: no change")


def _readable(change: Change, names: dict[str, str]) -> Change:
    def short(text: str) -> str:
        found = [names.get(name, name) for name in text.split(", ") if name]
        more = f" and {len(found) - _SYMBOLS} more" if len(found) > _SYMBOLS else ""
        return f"{', '.join(found[:_SYMBOLS])}{more}"

    return Change(change.what, short(change.before), short(change.after))


def _part(title: str, changes: Iterable[Change]) -> None:
    rows = table(title, "A", "B")
    for change in changes:
        rows.add_row(escape(change.what), escape(change.before) or "-", escape(change.after) or "-")
    if rows.row_count:
        out.print(rows)
    else:
        out.print(f"{title}: no change")
