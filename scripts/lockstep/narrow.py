"""`BACKENDS="a b"`: an image with some of its backends, under a name of its own, so that nothing is mistaken for it.

It is the same recipe with fewer venvs. What is rendered for it goes into build/, since nobody commits it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lockstep.errors import LockstepError
from lockstep.matrix import Matrix


def narrow(matrix: Matrix, image: str, backends: Sequence[str]) -> tuple[Matrix, str]:
    """Return the matrix with the narrowed image in it, and that image's name: IMAGE-BACKEND-BACKEND, in IMAGE's order.

    All of an image's backends, or none, is the image itself. LockstepError where IMAGE lacks one of them.
    """
    whole = matrix.images[image]
    for name in backends:
        if name not in whole.backends:
            raise LockstepError(
                f'image {image} has no backend "{name}"',
                where="BACKENDS",
                fix=f"name some of {', '.join(whole.backends)}",
            )
    kept = [name for name in whole.backends if name in backends]
    if not kept or kept == whole.backends:
        return matrix, image
    offered = {package for name in kept for package in matrix.backends[name].optional}
    fewer = whole.model_copy(
        update={
            "backends": kept,
            "with_": [package for package in whole.with_ if package in offered],
            "description": f"{whole.description or image}; only {', '.join(kept)}",
        }
    )
    name = "-".join((image, *kept))
    if name in matrix.images:
        raise LockstepError(f"there is an image {name} already", where="BACKENDS", fix=f"build that, or rename {image}")
    return matrix.model_copy(update={"images": {**matrix.images, name: fewer}}), name


def with_narrowed(matrix: Matrix, name: str) -> Matrix:
    """Return the matrix with the image `name` in it where that is the name of a narrowed one, else as it is."""
    if name in matrix.images:
        return matrix
    for image, whole in matrix.images.items():
        # Backends' names hold hyphens themselves, so the name is compared with what narrowing would call it.
        parts = "".join(f"(?P<b{number}>-{re.escape(mate)})?" for number, mate in enumerate(whole.backends))
        if match := re.fullmatch(re.escape(image) + parts, name):
            kept = [mate for number, mate in enumerate(whole.backends) if match[f"b{number}"]]
            return narrow(matrix, image, kept)[0]
    return matrix


def parse_backends(text: str) -> list[str]:
    """Read `BACKENDS=`: names separated by commas or spaces."""
    return [name for name in re.split(r"[\s,]+", text) if name]
