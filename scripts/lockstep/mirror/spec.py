"""What `mirror:` in versions.yaml may say."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lockstep.arch import Arch
from lockstep.matrix.types import Model, Req, Sha256, Version, Why


class MirrorWheel(Model):
    """One wheel, for one architecture. Without a hash it locks and renders, but does not build."""

    sha256: Annotated[Sha256 | None, Field(description="of the wheel; `make mirror` fills it in")] = None
    filename: Annotated[
        str | None, Field(pattern=r"^[^/\s]+\.whl$", description="the wheel's file name; filled in with the hash")
    ] = None
    size: Annotated[int | None, Field(gt=0, description="bytes; filled in with the hash")] = None


class MirrorSpec(Model):
    """One package whose wheels are taken once, checked, and kept, so that no build fetches them.

    No address is written here: `make mirror` asks the index that LOCKSTEP_MIRROR_INDEX names, else the default index.
    """

    version: Version
    why: Why
    wheels: Annotated[
        dict[Literal["x86_64", "aarch64"], MirrorWheel], Field(min_length=1, description="one entry per architecture")
    ]
    requires: Annotated[
        list[Req], Field(description="the wheel's requirements, so that a backend can be locked before it is at hand")
    ] = []

    def wheel(self, arch: Arch) -> MirrorWheel | None:
        """Return what is declared for an architecture, or None."""
        return self.wheels.get(arch.value)
