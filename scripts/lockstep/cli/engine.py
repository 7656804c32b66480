"""The commands about the engine that builds run on."""

from __future__ import annotations

import typer

from lockstep.console import out, table


def register(app: typer.Typer) -> None:
    """Add `engine`, `engine-stop`, `engine-status` and `engine-clean`."""

    @app.command("engine")
    def engine() -> None:
        """Find the engine to build with, or make and start the private one; print how to reach it."""
        from lockstep.engine import ensure_engine

        found = ensure_engine()
        for name in ("DOCKER_HOST", "DOCKER_CONFIG"):
            if name in found.env:
                out.print(f"{name}={found.env[name]}", markup=False, soft_wrap=True)
        out.print(f"docker={found.docker}", markup=False, soft_wrap=True)

    @app.command("engine-stop")
    def engine_stop() -> None:
        """Stop the private engine; its images and caches stay."""
        from lockstep.engine import stop_engine

        stop_engine()

    @app.command("engine-status")
    def engine_status() -> None:
        """Print which engine a build would use, and whether it answers."""
        from lockstep.engine import engine_status

        status = engine_status()
        rows = table("engine", status.kind)
        rows.add_row("answers", "yes" if status.running else "no")
        store = ("containerd" if status.containerd_store else "docker's own") if status.running else ""
        for name, value in (
            ("address", status.address),
            ("docker", status.server),
            ("buildx", status.buildx),
            ("image store", store),
            ("note", status.note),
        ):
            if value:
                rows.add_row(name, value)
        out.print(rows)

    @app.command("engine-clean")
    def engine_clean() -> None:
        """Remove the private engine with all its images and caches."""
        from lockstep.engine import clean_engine

        clean_engine()
