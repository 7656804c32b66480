"""Commands that look into images and venvs without running them: audit, diff, explain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.arch import Arch


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(audit)


def audit(
    path: Annotated[Path, typer.Argument(help="a venv, a root file system, an OCI layout, or an image's tar")],
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64; read from the image or its libraries by default")] = "",
    backend: Annotated[str, typer.Option(help="the backend of versions.yaml that a lone venv is")] = "",
    base: Annotated[Path | None, typer.Option(help="a root file system to take the base's libraries from")] = None,
    other_torch: Annotated[
        list[Path] | None, typer.Option(help="a folder with another torch, to say what a library was built for")
    ] = None,
    only: Annotated[str, typer.Option(help="checks to run, separated by commas; all by default")] = "",
    fast: Annotated[bool, typer.Option("--fast", help="compare sizes with RECORD instead of content")] = False,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="also print what is accounted for, and notes")
    ] = False,
) -> None:
    """Say what is wrong inside a venv or an image; nothing of it is run. Exit code 1 where something is."""
    from lockstep.audit.finding import CHECKS
    from lockstep.audit.matrix import rules_of, wanted_of
    from lockstep.audit.report import as_json, print_audit
    from lockstep.audit.run import Options
    from lockstep.audit.run import audit as run_audit
    from lockstep.console import out
    from lockstep.errors import LockstepError

    checks = tuple(only.split(",")) if only else CHECKS
    for name in checks:
        if name not in CHECKS:
            raise LockstepError(f'there is no check "{name}"', where="--only", fix=f"name some of {', '.join(CHECKS)}")
    options = Options(
        arch=_arch(arch),
        base=base,
        other_torch=tuple(other_torch or ()),
        name=backend,
        checks=checks,
        hashed=not fast,
    )
    result = run_audit(path, options, rules=rules_of(), wanted=wanted_of(options.arch))
    if json:
        out.file.write(as_json(result))
    else:
        print_audit(result, verbose=verbose)
    if not result.ok:
        raise typer.Exit(1)


def _arch(text: str) -> Arch | None:
    from lockstep.errors import LockstepError

    if not text:
        return None
    try:
        return Arch(text)
    except ValueError:
        raise LockstepError(f'"{text}" is no architecture', where="--arch", fix="name x86_64 or aarch64") from None
