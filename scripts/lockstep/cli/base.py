"""The commands about the base that images stand on."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.arch import Arch, host_arch
from lockstep.console import note, out


def register(app: typer.Typer) -> None:
    """Add `lock-base` and `base`."""

    @app.command("lock-base")
    def lock_base() -> None:
        """Lock the base's Debian packages, for every architecture, as the archive is now."""
        from lockstep.base import lock_bases
        from lockstep.matrix import load

        changed = lock_bases(load())
        for path in changed:
            out.print(str(path), markup=False, soft_wrap=True)
        if not changed:
            note("nothing changed")

    @app.command("base")
    def base(arch: Annotated[Arch | None, typer.Option(help="default: this machine's")] = None) -> None:
        """Make the root file systems that an image of this architecture needs, unless they are there; print paths."""
        from lockstep.base import Role, make_bases

        # Install stages run on this machine, whatever the image's architecture.
        for path in make_bases([(arch or host_arch(), Role.RUNTIME), (host_arch(), Role.BUILDER)]):
            out.print(str(path), markup=False, soft_wrap=True)
