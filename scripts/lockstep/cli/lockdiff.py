"""The command `lock-diff`."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `lock-diff`."""

    @app.command("lock-diff")
    def lock_diff(
        base: Annotated[str, typer.Argument(help="branch, tag or commit to compare the locks with")],
    ) -> None:
        """Say what the locks move against another commit; fail where a package went backwards undeclared."""
        from lockstep import lockdiff
        from lockstep.console import out, table
        from lockstep.errors import LockstepError
        from lockstep.matrix import load

        matrix = load()
        now = lockdiff.locks_now(matrix)
        found = lockdiff.moves(matrix, lockdiff.locks_at(base), now)
        rows = table("backend", "arch", "package", "move", "before", "after", "why")
        for move in found:
            rows.add_row(
                move.backend, move.arch.value, move.package, move.kind, move.before or "-", move.after or "-", move.why
            )
        if found:
            out.print(rows)
        else:
            out.print(f"nothing moves against {base}")
        if different := lockdiff.uneven(now.values()):
            rows = table("backend", "package", *matrix.arches)
            for item in different:
                rows.add_row(item.backend, item.package, *(item.versions.get(arch, "-") for arch in matrix.targets()))
            out.print("versions that differ between the architectures:")
            out.print(rows)
        if fallen := lockdiff.backwards(found):
            names = ", ".join(
                f"{move.package} {move.before} to {move.after} in {move.backend} on {move.arch}" for move in fallen
            )
            raise LockstepError(
                f"older than at {base}: {names}",
                where="images/*/lock.*.txt",
                fix="relock with UPGRADE=<package>, or declare each under `older` of its backend, with its why",
            )
