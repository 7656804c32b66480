"""The command `arch-report`."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("arch-report")(arch_report)


def arch_report(
    image: Annotated[list[str] | None, typer.Argument(help="images of versions.yaml; all of them by default")] = None,
    backends: Annotated[str, typer.Option(help="only these backends of the image")] = "",
    without: Annotated[str, typer.Option(help="leave out these packages that are compiled from source")] = "",
    scripts: Annotated[
        bool, typer.Option("--scripts", help="read the console scripts from the wheels too; asks the index")
    ] = False,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="do not look into images that were built")] = False,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say what differs between an image's architectures. Exit code 1 where versions.yaml does not declare it."""
    from lockstep.archreport.run import as_json, print_faults, print_report, report_on
    from lockstep.cli.options import chosen_image
    from lockstep.console import out
    from lockstep.matrix import load

    whole = load()
    reports = []
    for name in image or whole.images:
        matrix, chosen = chosen_image(name, whole, backends, without)
        reports.append(report_on(matrix, chosen, scripts=scripts, images=not plan_only))
        if not json:
            print_report(reports[-1])
    if json:
        out.file.write(as_json(reports))
    else:
        print_faults(reports)
    if not all(item.ok for item in reports):
        raise typer.Exit(1)
