"""Options that several commands take, turned into what they mean or into one clear sentence."""

from __future__ import annotations

from lockstep.arch import Arch, host_arch
from lockstep.errors import LockstepError
from lockstep.matrix import Image, Matrix
from lockstep.narrow import Narrowing, narrow, split_name


def known_image(name: str, matrix: Matrix) -> Image:
    """Return the image of that name. LockstepError lists the images there are."""
    if name not in matrix.images:
        raise LockstepError(
            f'there is no image "{name}"', where="versions.yaml images", fix=f"name one of {', '.join(matrix.images)}"
        )
    return matrix.images[name]


def chosen_part(name: str, matrix: Matrix, backends: str = "", without: str = "") -> tuple[str, Narrowing]:
    """Return the image of versions.yaml and what is kept of it, from IMAGE=, BACKENDS= and WITHOUT=.

    The name of a narrowed image says the same as the image's name with both.
    """
    what = Narrowing.parse(backends, without)
    image, named = split_name(matrix, name)
    known_image(image, matrix)
    if named and what:
        raise LockstepError(f"{name} is a part of {image} already", where="IMAGE", fix=f"say IMAGE={image}")
    return image, named or what


def chosen_image(name: str, matrix: Matrix, backends: str = "", without: str = "") -> tuple[Matrix, str]:
    """Return the matrix with the image that IMAGE=, BACKENDS= and WITHOUT= name, and that image's name."""
    return narrow(matrix, *chosen_part(name, matrix, backends, without))


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
