"""Commands that look ahead or measure: bump, why, repro, bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (bump,):
        app.command()(command)


def bump(
    to: Annotated[str, typer.Option(help="the version to move to")],
    backend: Annotated[str, typer.Option(help="the backend of versions.yaml; its own package moves")] = "",
    package: Annotated[str, typer.Option(help="another package: of the backend, or wherever it is pinned")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="write the report and change nothing else")] = False,
    abi_mb: Annotated[int, typer.Option(help="megabytes of changed wheels that may be fetched to check libraries")] = 0,
    out_path: Annotated[Path | None, typer.Option("--out", help="where the report goes, without .md and .json")] = None,
) -> None:
    """Move a version in versions.yaml, relock, and report what that breaks; exit code 1 where it cannot be locked."""
    from lockstep.bump.report import write_report
    from lockstep.bump.run import Request, written_to
    from lockstep.bump.run import bump as run_bump
    from lockstep.console import note, out

    request = Request(to, backend, package, dry_run, abi_mb * 1_000_000)
    report = run_bump(request)
    markdown, data = write_report(report, out_path or written_to(request, report))
    out.print(f"{report.package} {report.before} → {report.to}: ", end="")
    blocks = f"cannot be locked, {len(report.blocks)} reasons; nothing was changed"
    out.print("locked" if report.locked and not dry_run else "can be locked" if report.locked else blocks)
    for text in report.faults:
        out.print(f"  {text}", markup=False, soft_wrap=True)
    out.print(f"report  {_shown(markdown)}")
    out.print(f"json    {_shown(data)}")
    note(f"{report.cost.seconds:.0f} s, {report.cost.fetched_bytes / 1e6:.1f} MB read besides the resolver's")
    if not report.locked:
        raise typer.Exit(1)


def _shown(path: Path) -> str:
    from lockstep.paths import ROOT

    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
