"""The command `add-ons`: lock what /opt/lockstep/add-ons of an image may install."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("add-ons")(add_ons)


def add_ons() -> None:
    """Ask the index for the wheels of versions.yaml's add_ons and write docker/image/add-ons.lock."""
    from lockstep.add_ons import LOCK, write_lock
    from lockstep.console import note, out
    from lockstep.matrix import load
    from lockstep.paths import ROOT

    changed = write_lock(load())
    out.print(LOCK.read_text(), end="", markup=False, soft_wrap=True)
    note(f"{LOCK.relative_to(ROOT)} {'written' if changed else 'is as it was'}")
