"""The command that checks downstream sources against a version of a package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `check-source`."""
    app.command("check-source")(check_source)


def check_source(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the downstream tree, or one file")],
    to: Annotated[str, typer.Option(help="the version to check against: 0.29.0, a wheel, or a folder of sources")],
    package: Annotated[str, typer.Option(help="the package whose interface is used")] = "vllm",
    frm: Annotated[str, typer.Option("--from", help="the version that works now, to tell what is new")] = "",
    config: Annotated[
        Path | None, typer.Option(help="lockstep-source.toml or pyproject.toml, if not beside DIR")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="write the report as JSON to this file too")] = None,
    form: Annotated[str, typer.Option("--format", help="what is printed: table or json")] = "table",
) -> None:
    """Say what a version of a package breaks in a source tree; exit 1 for new findings, 2 where it cannot check."""
    from lockstep.console import note, out
    from lockstep.errors import LockstepError
    from lockstep.files import write_text
    from lockstep.source import check_source as check
    from lockstep.source import load_config

    try:
        if form not in {"table", "json"}:
            raise LockstepError(f'there is no format "{form}"', fix="choose table or json")
        settings = load_config(directory.resolve(), config)[0] if config else None
        report = check(directory, package, to, frm or None, settings)
    except LockstepError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if json is not None:
        write_text(json, report.json() + "\n")
    if form == "json":
        print(report.json())
    else:
        report.show(out)
    note(f"{report.seconds:.1f} s, {report.fetched / 1e6:.1f} MB fetched")
    if not report.ok:
        raise typer.Exit(1)
