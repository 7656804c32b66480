"""The command `patches`: what is patched, and whether it still fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lockstep.patches import Row


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(patches)


def patches(
    version: Annotated[str, typer.Option(help="a published version to forecast, instead of the locked one")] = "",
    package: Annotated[
        str, typer.Option(help="one package only; needed with --version where several have patches")
    ] = "",
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64: whose wheel to read")] = "x86_64",
) -> None:
    """Print every patch and removal, and how it stands on the locked version of its package.

    Fails where a build would stop. With --version nothing fails: it is a forecast, read out of the published wheel.
    """
    from lockstep.arch import Arch
    from lockstep.console import megabytes, note, warn
    from lockstep.errors import LockstepError
    from lockstep.matrix import load
    from lockstep.patches import Use, forecast, locked, packages

    python = load().python
    if version:
        uses = [Use(package or "vllm", version, (), frozenset())]
    else:
        names = [package] if package else packages()
        uses = [use for name in names for use in locked(name)]
        for name in names:
            if not any(use.package == name for use in uses):
                note(f"{name}: in no lock, so none of its patches is used")
    stops = 0
    for use in uses:
        found = forecast(use.package, use.version, Arch(arch), python, use.names or None)
        used = f", locked for {', '.join(use.backends)}" if use.backends else ""
        _print(f"{use.package} {use.version}{used}", found.rows)
        stops += sum(row.stops for row in found.rows)
        note(f"read {megabytes(found.fetched)} MB of the wheel of {use.package} {use.version}")
    if stops and version:
        warn(f"a build of this version would stop at {stops} of them")
    elif stops:
        raise LockstepError(
            f"a build would stop at {stops} of them",
            where="docker/patches",
            fix="rewrite those that are broken; test and then widen Lockstep-Versions of those that are undeclared",
        )


def _print(title: str, rows: tuple[Row, ...]) -> None:
    from lockstep.console import out, table

    result = table("patch", "file", "versions", "state", "forwarded", "why")
    for row in rows:
        result.add_row(row.id, row.file, row.versions, row.state, row.forwarded.split(" ", 1)[0], row.why)
    out.print(title, style="bold", markup=False)
    out.print(result)
