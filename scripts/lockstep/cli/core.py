"""Commands of the main road: lock, plan, render, image, probe."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands. Each imports what it needs when it runs, so that `render` starts in a fraction of a second."""
    for command in (lock, plan, render, image, probe):
        app.command()(command)


def lock(
    backend: Annotated[list[str] | None, typer.Option(help="only this backend; may be given more than once")] = None,
    upgrade: Annotated[str, typer.Option(help="packages that may move, or `all`")] = "",
) -> None:
    """Resolve every backend on every architecture and write images/*/lock.<arch>.txt."""
    from lockstep.console import note, out, table
    from lockstep.errors import LockstepError
    from lockstep.matrix import load
    from lockstep.relock import relock
    from lockstep.resolve import parse_upgrade

    matrix = load()
    names = backend or list(matrix.backends)
    for name in names:
        if name not in matrix.backends:
            raise LockstepError(
                f'there is no backend "{name}"', where="versions.yaml", fix=f"name one of {', '.join(matrix.backends)}"
            )
    note(f"resolving {', '.join(names)} on {', '.join(matrix.arches)}")
    result = table("backend", "arch", "package", "before", "after")
    written = 0
    for item in relock(matrix, names, parse_upgrade(upgrade)):
        written += item.changed
        if item.before is None:
            result.add_row(item.after.backend, item.after.arch, f"{len(item.after.wheels)} packages", "-", "new lock")
            continue
        for package, old, new in item.moves():
            result.add_row(item.after.backend, item.after.arch, package, old or "-", new or "-")
    if result.row_count:
        out.print(result)
    note(f"{written} locks written" if written else "nothing to change: every lock is as it was")


def plan(
    image: Annotated[str, typer.Argument(help="an image of versions.yaml")],
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64")] = "",
    backends: Annotated[str, typer.Option(help="only these backends of the image")] = "",
    without: Annotated[str, typer.Option(help="leave out these packages that are compiled from source")] = "",
) -> None:
    """Print the layers of an image, bottom first."""
    from lockstep.cli.options import chosen_image, known_arch
    from lockstep.console import megabytes, out, table
    from lockstep.layers import plan as plan_layers
    from lockstep.lock import read_lock
    from lockstep.matrix import load

    matrix, image = chosen_image(image, load(), backends, without)
    target = known_arch(arch, matrix)
    locks = {name: read_lock(name, target) for name in matrix.images[image].backends}
    layers = plan_layers(matrix, image, locks)
    result = table("layer", "venvs", "packages", "MB", right=("MB",))
    for layer in layers:
        names = ", ".join(f"{wheel.name} {wheel.version}" for wheel in layer.wheels)
        # What no index serves has a size only once it is built or mirrored.
        result.add_row(layer.name, " ".join(layer.venvs), names, megabytes(layer.size) if layer.size else "?")
    out.print(result)
    out.print(f"{len(layers)} layers, {megabytes(sum(layer.size for layer in layers))} MB of wheels")


def render(check: Annotated[bool, typer.Option(help="write nothing; fail where a file differs")] = False) -> None:
    """Write images/*/Dockerfile, bake.hcl and versions.schema.json from versions.yaml and the locks."""
    from lockstep.console import note
    from lockstep.errors import LockstepError
    from lockstep.matrix import load
    from lockstep.paths import ROOT
    from lockstep.render import differing, write
    from lockstep.render import render as render_all

    files = render_all(load(), anew=check)
    if check:
        if stale := differing(files):
            raise LockstepError(
                f"{len(stale)} generated files differ from what their sources say",
                where=", ".join(str(path.relative_to(ROOT)) for path in stale),
                fix="run `make render` and commit the result",
            )
        note(f"{len(files)} generated files are as they should be")
        return
    written = write(files)
    for path in written:
        note(f"wrote {path.relative_to(ROOT)}")
    if not written:
        note(f"nothing to change in {len(files)} files")


def image(
    name: Annotated[str, typer.Argument(help="an image of versions.yaml")],
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64")] = "",
    base: Annotated[str, typer.Option(help="bootstrap (Debian) or cuda (NVIDIA)")] = "bootstrap",
    compression: Annotated[str, typer.Option(help="zstd, or gzip for old clients")] = "zstd",
    no_cache: Annotated[
        bool, typer.Option(help="run every step again and fetch every wheel: BuildKit empties the caches of steps, too")
    ] = False,
    fresh_bytecode: Annotated[bool, typer.Option(help="compile all bytecode of the steps that run, keep none")] = False,
    cache_to: Annotated[str, typer.Option(help="BuildKit cache to write, best effort")] = "",
    cache_from: Annotated[str, typer.Option(help="BuildKit cache to read, best effort")] = "",
    backends: Annotated[str, typer.Option(help="only these backends of the image, under a name of its own")] = "",
    without: Annotated[str, typer.Option(help="leave out these packages that are compiled from source")] = "",
    wheels: Annotated[bool, typer.Option(help="compile the wheels that the store lacks")] = False,
) -> None:
    """Build an image into build/oci/, name it in the engine, and print digest, size and times."""
    from lockstep.build import Options
    from lockstep.cli.options import chosen_part, known_arch, one_of
    from lockstep.console import out
    from lockstep.image import make_image, report
    from lockstep.matrix import load

    matrix = load()
    name, part = chosen_part(name, matrix, backends, without)
    options = Options(
        one_of("base", base, ("bootstrap", "cuda")),
        one_of("compression", compression, ("zstd", "gzip")),
        no_cache,
        cache_to,
        cache_from,
        fresh_bytecode,
    )
    target = known_arch(arch, matrix)
    report(make_image(matrix, name, target, options, part, wheels=wheels))
    if part:
        out.print(f"part    {part.sentence(name)}", soft_wrap=True)


def probe(
    name: Annotated[str, typer.Argument(help="an image of versions.yaml that has been built")],
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64")] = "",
    select: Annotated[str, typer.Option(help="only probes whose name matches (pytest -k)")] = "",
    backends: Annotated[str, typer.Option(help="only these backends of the image")] = "",
    without: Annotated[str, typer.Option(help="leave out these packages that are compiled from source")] = "",
) -> None:
    """Run an image and look into it as root and as a cluster's user."""
    from lockstep.cli.options import chosen_part, known_arch
    from lockstep.console import out
    from lockstep.matrix import load
    from lockstep.narrow import LEFT_OUT, narrow
    from lockstep.paths import ROOT
    from lockstep.probe import probe as probe_image

    whole, part = chosen_part(name, load(), backends, without)
    matrix, name = narrow(load(), whole, part)
    record = probe_image(matrix, name, known_arch(arch, matrix), select)
    but = f" but for {', '.join(part.without)}, {LEFT_OUT}" if part.without else ""
    out.print(f"every probe passed{but}; recorded in {record.relative_to(ROOT)}", soft_wrap=True)
