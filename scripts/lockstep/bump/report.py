"""The report as Markdown that a pull request can hold, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lockstep.bump.model import FindingRow, LayerRow, MoveRow, Report, StageRow
from lockstep.files import write_text

_ARROWS = {"up": "↑", "down": "↓ **older**", "in": "new", "out": "gone", "built": "rebuilt"}
_LONG = 12


def write_report(report: Report, path: Path) -> tuple[Path, Path]:
    """Write PATH.md and PATH.json; return both paths."""
    markdown, data = path.with_name(f"{path.name}.md"), path.with_name(f"{path.name}.json")
    write_text(markdown, as_markdown(report))
    write_text(data, report.model_dump_json(indent=1) + "\n")
    return markdown, data


def as_markdown(report: Report) -> str:
    """Return the report as Markdown. Pure."""
    parts = [
        f"## {report.package} {report.before or '–'} → {report.to}",
        _summary(report),
        _edits(report),
        _follows(report),
        _moves(report),
        _rules(report),
        _findings(report),
        _patches(report),
        _sources(report),
        _layers(report),
        _rebuild(report),
        _footer(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(report: Report) -> str:
    lines = []
    if report.locked:
        done = "It can be locked" if report.dry_run else "It is locked"
        lines.append(f"- {done}: {', '.join(report.backends)}.")
        if report.dry_run:
            lines.append("- Nothing was written to the checkout (DRY_RUN=1).")
    else:
        lines.append("- **It cannot be locked as versions.yaml stands; nothing was changed.**")
        for block in report.blocks:
            why = f" Its reason: {block.why}." if block.why else ""
            lines.append(f"  - {block.kind}: {_md(block.what)}.{why}{f' To do: {block.fix}.' if block.fix else ''}")
    if report.what_if:
        lines.append("- Everything below is a **what-if**: the lines' pins moved as the new wheel asks.")
    blocked = {block.what for block in report.blocks}
    faults = [text for text in report.faults if text not in blocked]
    found = _count(len(faults), "finding")
    lines.append(f"- {found[0].upper()}{found[1:]} to settle before a build" + (":" if faults else "."))
    lines += [f"  - {_md(text)}" for text in faults]
    for text in report.left:
        lines.append(f"- Left as it is: {text}.")
    return "\n".join(lines)


def _edits(report: Report) -> str:
    rows = [
        (f"`{row.where}`", row.before, row.after, _md(row.why) + (" (what-if)" if row.hypothetical else ""))
        for row in report.edits
    ]
    body = _table(("key", "before", "after", "why"), rows) or "No pin moves."
    return _section("versions.yaml", "\n\n".join(part for part in (body, _new_line(report)) if part))


def _new_line(report: Report) -> str:
    """Return what to write for a line of its own, where a line stands in the way and its pins are known."""
    moved = [row for row in report.edits if row.hypothetical]
    if not moved:
        return ""
    pins = ", ".join(f'{row.where.rsplit(".", 1)[-1]}: "{row.after}"' for row in moved)
    lines = sorted({row.where.split(".", 1)[1].rsplit(".", 1)[0] for row in moved})
    mates = [row.backend for row in report.follows if row.backend not in report.backends]
    rest = f" and leave {', '.join(mates)} on {', '.join(lines)}" if mates else ""
    return (
        f"Either move {', '.join(lines)} itself (the what-if below), or give {', '.join(report.backends)} a line of "
        f"its own{rest}:\n\n```yaml\nlines:\n  new-line: {{ {pins} }}\n```"
    )


def _follows(report: Report) -> str:
    if len(report.follows) < 2 and not any(row.hypothetical for row in report.follows):
        return ""
    rows = [(row.backend, row.line, "yes" if row.follows else "**no**", _md(row.what)) for row in report.follows]
    return _section("Who can follow", _table(("backend", "line", "follows", ""), rows))


def _moves(report: Report) -> str:
    if why := report.not_computed.get("moves"):
        return _section("Locks", f"Not computed: {why}.")
    if not report.moves:
        return _section("Locks", "Nothing moves.")
    rows = [
        (
            row.package, row.before or "–", row.after or "–", _ARROWS[row.kind], f"{row.bytes_after / 1e6:.1f}",
            _signed(row.bytes_after - row.bytes_before), row.backend, " ".join(row.arches),
        )
        for row in sorted(report.moves, key=_rank)
    ]  # fmt: skip
    older = [row for row in report.moves if row.kind == "down" and not row.declared]
    said = f"{_count(len(report.moves), 'move')}, " + (
        f"**{len(older)} to an older version**." if older else "none to an older version."
    )
    head = ("package", "before", "after", "", "MB", "Δ MB", "backend", "on")
    return _section("Locks", f"{said}\n\n{_fold(_table(head, rows), len(rows), 'all moves')}")


def _rank(row: MoveRow) -> tuple[int, str, str]:
    return (("down", "in", "out", "up", "built").index(row.kind), row.package, row.backend)


def _rules(report: Report) -> str:
    title = "Overrides, caps, holds and exclusions"
    if why := report.not_computed.get("rules"):
        return _section(title, f"Not computed: {why}.")
    shown = [row for row in report.rules if row.state != "needed" or row.was != row.state]
    rows = [
        (row.backend, row.kind, f"`{row.rule}`", _state(row.state, row.was), _md(row.what), _md(row.why))
        for row in sorted(shown, key=lambda item: (item.state == item.was, item.state))
    ]
    rest = len(report.rules) - len(shown)
    return _section(
        title,
        "\n\n".join(
            part
            for part in (
                _table(("backend", "kind", "rule", "state", "because", "its why"), rows),
                f"{_count(rest, 'rule')} {'is' if rest == 1 else 'are'} needed as before." if rest else "",
            )
            if part
        )
        or "There are none.",
    )


def _state(state: str, was: str) -> str:
    return f"{state}, as before" if state == was else f"**{state}** (was {was})"


def _findings(report: Report) -> str:
    parts = []
    for title, key, found in (
        ("Overlaps and requirements", "findings", report.findings),
        ("ABI of the wheels at hand", "abi", report.abi),
    ):
        if why := report.not_computed.get(key):
            parts.append(_section(title, f"Not computed: {why}."))
            continue
        shown = [row for row in found if row.level != "note"]
        text = _table(("", "check", "what", "why", "on"), [_finding(row) for row in sorted(shown, key=_weight)])
        more = report.coverage.get(key, "")
        parts.append(_section(title, "\n\n".join(part for part in (text or "None.", more.capitalize()) if part)))
    return "\n\n".join(parts)


def _weight(row: FindingRow) -> tuple[bool, bool, str]:
    return (row.level != "fail", row.known, row.what)


def _finding(row: FindingRow) -> tuple[str, ...]:
    state = {"fail": "**new**", "waived": "accounted for"}.get(row.level, row.level)
    state = "as before" if row.known and row.level == "fail" else state
    return (state, row.check, _md(row.what), _md(row.why), " ".join(row.arches))


def _patches(report: Report) -> str:
    if why := report.not_computed.get("patches"):
        return _section("Patches", f"Not computed: {why}.")
    rows = [(row.id, row.file, f"**{row.state}**" if row.stops else row.state, _md(row.why)) for row in report.patches]
    stops = sum(row.stops for row in report.patches)
    said = f"A build would stop at {stops} of them." if stops else "A build would stop at none of them."
    return _section("Patches", f"{said}\n\n{_table(('patch', 'file', 'state', 'what'), rows)}")


def _sources(report: Report) -> str:
    if why := report.not_computed.get("sources"):
        return _section("Downstream sources", f"Not computed: {why}.")
    rows = [
        (
            f"{row.tree.rstrip('/')}/{row.path}:{row.line}",
            row.kind + (" (note)" if row.note else ""),
            _md(row.what),
            _md(row.fix),
        )
        for row in sorted(report.sources, key=lambda item: item.note)
    ]
    said = f"{report.coverage.get('sources', '')}."
    return _section(
        "Downstream sources", f"{said}\n\n{_fold(_table(('where', 'kind', 'what', 'do'), rows), len(rows), 'findings')}"
    )


def _layers(report: Report) -> str:
    if why := report.not_computed.get("layers"):
        return _section("Image bytes", f"Not computed: {why}.")
    total = [
        (
            row.image, row.arch, f"{row.bytes_before / 1e6:.1f}", f"{row.bytes_after / 1e6:.1f}",
            _signed(row.bytes_after - row.bytes_before), f"{row.changed} of {row.layers}",
        )
        for row in report.images
    ]  # fmt: skip
    rows = [_layer(row) for row in report.layers]
    head = ("image", "arch", "MB before", "MB after", "Δ MB", "layers that change")
    detail = _table(("image", "arch", "layer", "MB before", "MB after", "Δ MB", "packages"), rows)
    said = "Compressed bytes of the wheels; a layer that does not change is neither pushed nor pulled again."
    parts = [said, _table(head, total), _apart(report), _fold(detail, len(rows), "per layer")]
    return _section("Image bytes", "\n\n".join(part for part in parts if part))


def _apart(report: Report) -> str:
    first = {(row.image, row.package): row for row in reversed(report.apart)}
    rows = sorted(first.values(), key=lambda row: -row.extra)
    lines = [
        f"- In {row.image}, {row.package} was shared and no longer is ({', '.join(map(' '.join, row.versions.items()))}"
        f"): {_signed(row.extra)} MB on {row.arch}."
        for row in rows[:5]
    ]
    if rest := rows[5:]:
        lines.append(f"- {_count(len(rest), 'smaller package')} likewise.")
    return "\n".join(lines)


def _layer(row: LayerRow) -> tuple[str, ...]:
    names = ", ".join(row.packages[:6]) + (f" and {len(row.packages) - 6} more" if len(row.packages) > 6 else "")
    sizes = (f"{row.bytes_before / 1e6:.1f}", f"{row.bytes_after / 1e6:.1f}")
    return (row.image, row.arch, row.layer, *sizes, _signed(row.bytes_after - row.bytes_before), names)


def _rebuild(report: Report) -> str:
    if report.not_computed.get("layers"):
        return ""
    lines = []
    for image in report.images:
        stages = [row for row in report.stages if (row.image, row.arch) == (image.image, image.arch)]
        known = [row for row in stages if row.seconds is not None]
        if not stages:
            continue
        if not known:
            lines.append(f"- {image.image} on {image.arch}: {_count(len(stages), 'stage')}; minutes are not known: "
                         f"{stages[0].basis}.")  # fmt: skip
            continue
        total = sum(row.seconds or 0.0 for row in known)
        export = f", and {_minutes(image.export_seconds)} to export" if image.export_seconds else ""
        missing = f"; {len(stages) - len(known)} of unknown length" if len(known) < len(stages) else ""
        lines.append(f"- {image.image} on {image.arch}: {_count(len(stages), 'stage')}, {_minutes(total)} in all, "
                     f"several at a time{export}{missing}. Longest: {_longest(known)}.")  # fmt: skip
    for row in report.compiles:
        lines.append(f"- compile {row.package} for {row.line} on {row.arch}: {_md(row.why)}.")
    if not report.compiles:
        lines.append("- No wheel has to be compiled again.")
    return _section("What will be built again", "\n".join(lines))


def _longest(rows: Sequence[StageRow]) -> str:
    first = sorted(rows, key=lambda row: -(row.seconds or 0.0))[:3]
    return ", ".join(f"{row.layer} {_minutes(row.seconds or 0.0)}" for row in first)


def _minutes(seconds: float | None) -> str:
    seconds = seconds or 0.0
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def _footer(report: Report) -> str:
    fetched = f"{report.cost.fetched_bytes / 1e6:.1f} MB of wheels and index pages read"
    return f"<sub>`make bump`: {report.cost.seconds:.0f} s, {fetched}, besides what the resolver read.</sub>"


def _section(title: str, body: str) -> str:
    return f"### {title}\n\n{body.strip()}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [f"| {' | '.join(row)} |" for row in rows]
    if not body:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *body])


def _fold(text: str, rows: int, title: str) -> str:
    """Return a long table folded away, as GitHub and GitLab show it."""
    if rows <= _LONG:
        return text
    return f"<details><summary>{title} ({rows})</summary>\n\n{text}\n\n</details>"


def _md(text: str) -> str:
    """Return text that a table cell can hold."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _signed(size: int) -> str:
    return f"{size / 1e6:+.1f}" if size else "0"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
