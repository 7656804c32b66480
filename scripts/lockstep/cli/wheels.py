"""The commands about wheels that no index serves: compiled from source, or mirrored."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.markup import escape

from lockstep.console import megabytes, note, out, table, warn
from lockstep.errors import LockstepError
from lockstep.matrix import Matrix

_ARCH = typer.Option(help="processor architecture; default: this machine's")


def register(app: typer.Typer) -> None:
    """Add `wheels`, `lock-wheels`, `mirror`, `mirror-push` and `mirror-pull`."""

    @app.command("wheels")
    def wheels(
        package: Annotated[str, typer.Option(help="only this one; default: every wheel that a backend installs")] = "",
        line: Annotated[str, typer.Option(help="with --package: the torch line, where several use it")] = "",
        arch: Annotated[str, _ARCH] = "",
        cold: Annotated[bool, typer.Option(help="build again, from nothing, and compare with the last build")] = False,
        memory_gb: Annotated[
            float, typer.Option(help="use at most this much memory; default: what the cgroup allows")
        ] = 0,
        status: Annotated[bool, typer.Option(help="build nothing; print what is built and what is not")] = False,
    ) -> None:
        """Build the wheels that are compiled from source, unless the store has them."""
        from lockstep.cli.options import known_arch
        from lockstep.compile import ledger, run, store
        from lockstep.compile.environment import Target, spec_of, targets
        from lockstep.compile.job import key_of
        from lockstep.engine import ensure_engine
        from lockstep.matrix import load

        matrix = load()
        line = _known_line(line, matrix)
        wanted = targets(matrix, known_arch(arch, matrix))
        if package:
            spec_of(matrix, package)
            named = [item for item in wanted if item.package == package and line in ("", item.line)]
            # A declared package that no backend installs yet can be built, to try it out.
            wanted = named or [Target(package, line or _only_torch_line(matrix), known_arch(arch, matrix))]
        rows = table("package", "line", "arch", "wheel", "MB", "two builds", right=("MB",))
        if status:
            for target in wanted:
                stored = store.find(key_of(matrix, target))
                book = ledger.read(stored.path.parent) if stored else None
                rows.add_row(
                    target.package,
                    target.line,
                    target.arch.value,
                    stored.path.name if stored else "not built",
                    megabytes(stored.size) if stored else "",
                    ledger.sentence(book) if book else "",
                )
            out.print(rows)
            return
        options = run.Options(
            cold=cold,
            memory_limit=int(memory_gb * 2**30) or None,
            cgroup_parent=os.environ.get("CGROUP_PARENT", ""),
        )
        engine = ensure_engine()
        # Whatever is missing is said before the first hour of compiling, and does not keep the rest from being built.
        faults: list[LockstepError] = []
        ready = [target for target in wanted if run.prepared(matrix, target, engine, options, faults)]
        for fault in faults if ready else []:
            warn(str(fault))
        for target in ready:
            built = run.build(matrix, target, engine, options)
            state = "cached" if built.cached else f"built in {built.seconds:.0f} s"
            note(f"{escape(str(target))}: {state}")
            rows.add_row(
                target.package,
                target.line,
                target.arch.value,
                str(built.stored.path),
                megabytes(built.stored.size),
                ledger.sentence(built.book) if built.book else "",
            )
            if built.book and built.book.equal is False:
                warn(f"{target}: {ledger.sentence(built.book)}")
        if ready:
            out.print(rows)
        if faults:
            raise LockstepError("\n  also ".join(str(fault) for fault in faults))

    @app.command("lock-wheels")
    def lock_wheels(
        package: Annotated[str, typer.Option(help="only this one")] = "",
        line: Annotated[str, typer.Option(help="with --package: the torch line, where several use it")] = "",
        upgrade: Annotated[str, typer.Option(help="packages of the build environment to move, or all")] = "",
    ) -> None:
        """Lock the build environment of each compiled wheel, on every line and architecture that uses it."""
        from lockstep.compile.environment import Target, lock, lock_path, spec_of, targets
        from lockstep.matrix import load
        from lockstep.paths import ROOT
        from lockstep.resolve import parse_upgrade

        matrix = load()
        line = _known_line(line, matrix)
        wanted = [target for arch in matrix.targets() for target in targets(matrix, arch)]
        if package:
            spec_of(matrix, package)
            named = [target for target in wanted if target.package == package and line in ("", target.line)]
            chosen = line or (_only_torch_line(matrix) if not named else "")
            wanted = named or [Target(package, chosen, arch) for arch in matrix.targets()]
        changed = [target for target in wanted if lock(matrix, target, parse_upgrade(upgrade))]
        for target in changed:
            out.print(str(lock_path(target).relative_to(ROOT)), markup=False, soft_wrap=True)
        if not changed:
            note("nothing changed")

    @app.command("mirror")
    def mirror(
        package: Annotated[str, typer.Option(help="only this one")] = "",
        arch: Annotated[str, typer.Option(help="only this architecture; default: all")] = "",
    ) -> None:
        """Fetch, check and keep the declared wheels; an unknown hash is written into versions.yaml."""
        from lockstep.cli.options import known_arch
        from lockstep.matrix import load
        from lockstep.mirror.fetch import mirror_all

        matrix = load()
        arches = [known_arch(arch, matrix)] if arch else matrix.targets()
        rows = table("package", "arch", "wheel", "MB", "state", right=("MB",))
        faults: list[LockstepError] = []
        for item in mirror_all(matrix, [package] if package else list(matrix.mirror), arches, faults):
            rows.add_row(item.package, item.arch.value, item.filename, megabytes(item.size), item.state)
        out.print(rows)
        if faults:
            raise LockstepError("\n  also ".join(str(fault) for fault in faults))

    @app.command("mirror-push")
    def mirror_push(
        to: Annotated[str, typer.Argument(help="REGISTRY/NAME, where the mirrored wheels are kept")],
    ) -> None:
        """Push every mirrored wheel to a registry, each as an OCI artifact tagged with its hash."""
        from lockstep.matrix import load
        from lockstep.mirror.oci import push_all

        for line in push_all(load(), to):
            out.print(line, markup=False, soft_wrap=True)

    @app.command("mirror-pull")
    def mirror_pull(
        source: Annotated[str, typer.Argument(help="REGISTRY/NAME, as given to mirror-push")],
    ) -> None:
        """Pull every mirrored wheel that the store lacks from a registry."""
        from lockstep.matrix import load
        from lockstep.mirror.oci import pull_all

        for line in pull_all(load(), source):
            out.print(line, markup=False, soft_wrap=True)


def _known_line(name: str, matrix: Matrix) -> str:
    """Return a line's name. LockstepError lists the lines there are."""
    if name and name not in matrix.lines:
        raise LockstepError(f'there is no line "{name}"', fix=f"name one of {', '.join(matrix.lines)}")
    return name


def _only_torch_line(matrix: Matrix) -> str:
    lines = [name for name, pins in matrix.lines.items() if "torch" in pins]
    if len(lines) == 1:
        return lines[0]
    raise LockstepError(
        "no backend installs it, and there are several torch lines", fix=f"add LINE= ({', '.join(lines)})"
    )
