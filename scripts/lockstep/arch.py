"""The two processor architectures, under every name that the tools give them."""

from __future__ import annotations

import platform
from enum import StrEnum

from lockstep.errors import LockstepError

# The oldest glibc of the supported bases (Ubuntu 24.04's; Debian trixie has 2.41): a wheel for a newer one is refused.
GLIBC = (2, 39)


class Arch(StrEnum):
    """A target architecture; its value is what `uname -m` and wheel tags say."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"

    @property
    def docker(self) -> str:
        """The name in an OCI platform, in GOARCH and in Debian: amd64 or arm64."""
        return {"x86_64": "amd64", "aarch64": "arm64"}[self.value]

    @property
    def platform(self) -> str:
        """The OCI platform: linux/amd64 or linux/arm64."""
        return f"linux/{self.docker}"

    @property
    def elf_machine(self) -> int:
        """The e_machine of its ELF files (elf.h: EM_X86_64 is 62, EM_AARCH64 is 183)."""
        return {"x86_64": 62, "aarch64": 183}[self.value]

    @property
    def manylinux(self) -> str:
        """uv's name of the target platform: the architecture with the oldest glibc of our bases."""
        return f"{self.value}-manylinux_{GLIBC[0]}_{GLIBC[1]}"

    @property
    def multiarch(self) -> str:
        """Debian's multiarch triplet, the name of the folder under /usr/lib."""
        return f"{self.value}-linux-gnu"


def host_arch() -> Arch:
    """Return this machine's architecture; LockstepError where it is neither of the two."""
    try:
        return Arch(platform.machine())
    except ValueError:
        raise LockstepError(
            f"this machine is a {platform.machine()}, and images are built for x86_64 and aarch64",
            fix="name the target with ARCH=x86_64 or ARCH=aarch64",
        ) from None
