"""Print an audit: a table for people, JSON for machines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.markup import escape

from lockstep.audit.abi import demangle
from lockstep.audit.finding import Finding
from lockstep.audit.run import Audit
from lockstep.console import out, table
from lockstep.narrow import LEFT_OUT

_SYMBOLS = 3


def print_audit(audit: Audit, *, verbose: bool = False) -> None:
    """Print the failures and what WITHOUT= leaves unmet, with verbose all that is waived or noted, then the totals."""
    shown = [item for item in audit.findings if item.level == "fail" or item.why == LEFT_OUT or verbose]
    names = demangle({name for item in shown for name in item.symbols[:_SYMBOLS]})
    many = len(audit.venvs) > 1
    rows = table("check", "path", "wheel", "what")
    for item in shown:
        rows.add_row(
            f"{item.check}/{item.kind}" + ("" if item.level == "fail" else f" ({item.level})"),
            escape(f"{item.venv}: {item.path}" if many and item.venv else item.path),
            escape(item.wheel),
            escape(_text(item, names)),
        )
    if shown:
        out.print(rows)
    out.print(escape(totals(audit)), soft_wrap=True)


def _text(item: Finding, names: dict[str, str]) -> str:
    text = item.what
    if item.symbols:
        more = f" and {len(item.symbols) - _SYMBOLS} more" if len(item.symbols) > _SYMBOLS else ""
        text += f": {', '.join(names[name] for name in item.symbols[:_SYMBOLS])}{more}"
    return f"{text} ({item.why})" if item.why else text


def totals(audit: Audit) -> str:
    """Return the closing line: what was looked at, what was found, how long it took."""
    levels = Counter(item.level for item in audit.findings)
    return (
        f"{audit.subject}: {len(audit.venvs)} venvs, {audit.distributions} distributions, {audit.libraries} ELF files, "
        f"{audit.files} files ({'hashed' if audit.hashed else 'not hashed'}): {levels['fail']} failures, "
        f"{levels['waived']} accounted for, {levels['note']} notes; {audit.seconds:.1f} s"
    )


def as_json(audit: Audit) -> str:
    """Return the audit as JSON with names demangled; `ok` tells whether it passed."""
    names = demangle({name for item in audit.findings for name in item.symbols})
    return json.dumps(plain(audit, names), indent=2) + "\n"


def plain(audit: Audit, names: dict[str, str]) -> dict[str, Any]:
    """Return the audit as plain data."""
    findings: Sequence[dict[str, Any]] = [
        {**item.plain(), "symbols": [{"name": name, "demangled": names[name]} for name in item.symbols]}
        for item in audit.findings
    ]
    return {
        "subject": audit.subject,
        "arch": audit.arch.value,
        "ok": audit.ok,
        "hashed": audit.hashed,
        "seconds": round(audit.seconds, 1),
        "venvs": list(audit.venvs),
        "distributions": audit.distributions,
        "libraries": audit.libraries,
        "files": audit.files,
        "findings": findings,
    }
