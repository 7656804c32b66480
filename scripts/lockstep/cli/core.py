"""Commands of the main road: lock, plan, render, image, probe."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands. Each imports what it needs when it runs, so that `render` starts in a fraction of a second."""
    for command in (lock, plan):
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
) -> None:
    """Print the layers of an image, bottom first."""
    from lockstep.cli.options import known_arch, known_image
    from lockstep.console import megabytes, out, table
    from lockstep.layers import plan as plan_layers
    from lockstep.lock import read_lock
    from lockstep.matrix import load

    matrix = load()
    target = known_arch(arch, matrix)
    locks = {name: read_lock(name, target) for name in known_image(image, matrix).backends}
    layers = plan_layers(matrix, image, locks)
    result = table("layer", "venvs", "packages", "MB", right=("MB",))
    for layer in layers:
        names = ", ".join(f"{wheel.name} {wheel.version}" for wheel in layer.wheels)
        result.add_row(layer.name, " ".join(layer.venvs), names, megabytes(layer.size))
    out.print(result)
    out.print(f"{len(layers)} layers, {megabytes(sum(layer.size for layer in layers))} MB of wheels")
