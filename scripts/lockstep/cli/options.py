"""Options that several commands take, turned into what they mean or into one clear sentence."""

from __future__ import annotations

from lockstep.arch import Arch, host_arch
from lockstep.errors import LockstepError
from lockstep.matrix import Image, Matrix


def known_image(name: str, matrix: Matrix) -> Image:
    """Return the image of that name. LockstepError lists the images there are."""
    if name not in matrix.images:
        raise LockstepError(
            f'there is no image "{name}"', where="versions.yaml images", fix=f"name one of {', '.join(matrix.images)}"
        )
    return matrix.images[name]


def known_arch(name: str, matrix: Matrix) -> Arch:
    """Return the architecture of that name, the host's where it is empty. LockstepError where the matrix lacks it."""
    wanted = name or host_arch().value
    if wanted not in matrix.arches:
        raise LockstepError(
            f'there is no architecture "{wanted}"',
            where="versions.yaml arches",
            fix=f"name one of {', '.join(matrix.arches)}",
        )
    return Arch(wanted)


def one_of(option: str, value: str, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of the choices; LockstepError names them otherwise."""
    if value not in choices:
        raise LockstepError(f'"{value}" is no {option}', fix=f"say one of {', '.join(choices)}")
    return value
