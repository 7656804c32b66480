"""Commands that look into images and venvs without running them: audit, diff, explain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.arch import Arch


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(audit)
    app.command()(diff)
    app.command()(explain)


def audit(
    path: Annotated[
        Path | None,
        typer.Argument(help="a venv, a root file system, an OCI layout, an image's tar, or a lock; default: --image"),
    ] = None,
    image: Annotated[str, typer.Option(help="an image that was built here, where no path is given")] = "",
    backends: Annotated[str, typer.Option(help="only these backends of the image, as it was built")] = "",
    without: Annotated[str, typer.Option(help="compiled packages that were left out of it")] = "",
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64; read from the image or its libraries by default")] = "",
    backend: Annotated[str, typer.Option(help="the backend of versions.yaml that a lone venv is")] = "",
    base: Annotated[Path | None, typer.Option(help="a root file system to take the base's libraries from")] = None,
    other_torch: Annotated[
        list[Path] | None, typer.Option(help="a folder with another torch, to say what a library was built for")
    ] = None,
    only: Annotated[str, typer.Option(help="checks to run, separated by commas; all by default")] = "",
    fast: Annotated[bool, typer.Option("--fast", help="compare sizes with RECORD instead of content")] = False,
    download: Annotated[
        bool, typer.Option("--download", help="of a lock, fetch every wheel once and check its libraries too")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="also print what is accounted for, and notes")
    ] = False,
) -> None:
    """Say what is wrong inside a venv or an image; nothing of it is run. Exit code 1 where something is.

    Of a lock, the wheels' own directories and requirements are read where they lie.
    """
    from lockstep.audit.finding import CHECKS
    from lockstep.audit.locks import audit_lock, is_lock
    from lockstep.audit.matrix import left_out_of, rules_of, wanted_of
    from lockstep.audit.report import as_json, print_audit
    from lockstep.audit.run import Options
    from lockstep.audit.run import audit as run_audit
    from lockstep.console import out
    from lockstep.errors import LockstepError
    from lockstep.narrow import Narrowing

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
        download=download,
    )
    if path is not None and (image or backends):
        given = "--image" if image else "--backends"
        raise LockstepError(
            f"it names the image to look into, as {path} does", where=given, fix="give a path or --image, not both"
        )
    if path is None:
        path = _layout(image, arch, backends, without)
    left_out = left_out_of(path, options.arch, Narrowing.parse("", without).without)
    rules, wanted = rules_of(), wanted_of(options.arch, without=left_out)
    result = audit_lock(path, options, rules, wanted) if is_lock(path) else run_audit(path, options, rules, wanted)
    if json:
        out.file.write(as_json(result))
    else:
        print_audit(result, verbose=verbose)
    if not result.ok:
        raise typer.Exit(1)


def diff(
    a: Annotated[str, typer.Argument(help="an image built here, an OCI layout, a tar, or a registry's reference")],
    b: Annotated[str, typer.Argument(help="the other image")] = "",
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64, where an image has both")] = "",
    probes_a: Annotated[Path | None, typer.Option(help="the probe record of A")] = None,
    probes_b: Annotated[Path | None, typer.Option(help="the probe record of B")] = None,
    backends: Annotated[str, typer.Option(help="without B: only these backends of image A are B")] = "",
    without: Annotated[str, typer.Option(help="without B: image A without these packages is B")] = "",
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say what changed from image A to image B. Exit code 1 where a probe passes in A and fails in B."""
    import json as encoder

    from lockstep.console import out
    from lockstep.diff import CLASSES, compare, probe_record, read_side
    from lockstep.diff_report import print_difference
    from lockstep.errors import LockstepError

    target = _arch(arch)
    if b and (backends or without):
        given = "--backends" if backends else "--without"
        raise LockstepError(f"it names a part of {a}, as {b} does", where=given, fix="leave it out, or leave out B")
    if not b:
        if not backends and not without:
            raise LockstepError("there is nothing to compare it with", where=a, fix="name B=, or BACKENDS= or WITHOUT=")
        part = _layout(a, arch, backends, without)
        if not part.exists():
            raise LockstepError("has not been built", where=str(part), fix="build it with `make image`, or name B=")
        b = str(part)
    a, b = _built(a, arch), _built(b, arch)
    found = compare(
        read_side(a, target, probes_a or probe_record(a)), read_side(b, target, probes_b or probe_record(b))
    )
    if json:
        out.file.write(encoder.dumps(found.plain(), indent=2) + "\n")
    else:
        print_difference(found)
    if found.probes[CLASSES[0]]:
        raise typer.Exit(1)


def explain(
    package: Annotated[str, typer.Argument(help="the package")],
    backend: Annotated[str, typer.Option(help="the backend of versions.yaml")],
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64; this machine's by default")] = "",
    without: Annotated[str, typer.Option(help="compiled packages that the image leaves out")] = "",
    offline: Annotated[bool, typer.Option("--offline", help="do not ask the index for newer releases")] = False,
) -> None:
    """Say why a package is at its version: who requires it, and which bound, override or cap decides."""
    from rich.markup import escape

    from lockstep.arch import host_arch
    from lockstep.console import out, table
    from lockstep.explain_lock import explain_locked
    from lockstep.narrow import Narrowing

    left_out = Narrowing.parse("", without).without
    found = explain_locked(package, backend, _arch(arch) or host_arch(), ask_index=not offline, without=left_out)
    out.print(escape(f"{found.package} {found.version or '(not locked)'} in {backend} on {found.arch}"))
    if found.bounds:
        rows = table("said by", "bound", "in force", "why")
        for bound in found.bounds:
            force = "yes" if bound.in_force else "overridden"
            force += "" if bound.allows else ", broken"
            rows.add_row(escape(bound.source), escape(bound.text), force, escape(bound.why))
        out.print(rows)
    out.print(escape(found.verdict()), soft_wrap=True)


def _built(text: str, arch: str) -> str:
    """Return the layout of an image that is named as in versions.yaml and was built here; other words as they are."""
    from lockstep.matrix import load
    from lockstep.narrow import with_narrowed
    from lockstep.paths import VERSIONS

    if Path(text).exists() or not VERSIONS.is_file() or text not in with_narrowed(load(), text).images:
        return text
    layout = _layout(text, arch, "", "")
    return str(layout) if layout.exists() else text


def _layout(image: str, arch: str, backends: str, without: str) -> Path:
    """Return the layout of an image as `make image` leaves it; relative below the checkout, as a user would type it."""
    from lockstep.cli.options import chosen_image, known_arch
    from lockstep.errors import LockstepError
    from lockstep.matrix import load
    from lockstep.paths import BUILD, ROOT

    if not image:
        raise LockstepError("nothing to look at is named", where="audit", fix="give a path, or --image")
    matrix, name = chosen_image(image, load(), backends, without)
    layout = BUILD / "oci" / f"{name}.{known_arch(arch, matrix)}"
    return layout.relative_to(ROOT) if Path.cwd() == ROOT else layout


def _arch(text: str) -> Arch | None:
    from lockstep.errors import LockstepError

    if not text:
        return None
    try:
        return Arch(text)
    except ValueError:
        raise LockstepError(f'"{text}" is no architecture', where="--arch", fix="name x86_64 or aarch64") from None
