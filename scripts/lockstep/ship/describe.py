"""What describes a built image: its SBOM and its provenance, from the checkout, the build's record and the layers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lockstep import __version__, paths
from lockstep.arch import Arch
from lockstep.debs import LockedDeb
from lockstep.debs import read_lock as read_deb_lock
from lockstep.errors import LockstepError
from lockstep.lock import carried, read_lock
from lockstep.matrix import Matrix, Narrowed
from lockstep.narrow import told
from lockstep.ship import attest, contents, sbom
from lockstep.ship.attest import Document, Recipe
from lockstep.ship.layout import OciImage
from lockstep.ship.refs import Ref
from lockstep.ship.source import of_image

_SHOWN = 8


def documents(matrix: Matrix, image: str, arch: Arch, built: OciImage, target: Ref) -> list[Document]:
    """Return the SBOM and the provenance of a built image, ready to be attached."""
    made = bill(matrix, image, arch, built)
    recipe = recipe_of(matrix, image, arch, built)
    return [
        Document(sbom.MEDIA_TYPE, made, {"org.opencontainers.image.title": f"{image}.{arch}.cdx.json"}),
        attest.provenance(recipe, target.repository, built.descriptor.digest),
    ]


def bill(matrix: Matrix, image: str, arch: Arch, built: OciImage) -> bytes:
    """Return the SBOM. LockstepError where the locks of the checkout are not those that the image was built from."""
    backends = matrix.images[image].backends
    locks = [carried(matrix, image, read_lock(name, arch)) for name in backends]
    debs, suite = _debs(matrix, arch, base_of(image, arch))
    held = contents.read(of_image(built))
    subject = sbom.Subject(image, arch, built.descriptor.digest, matrix.epoch)
    made = sbom.make(subject, locks, debs, suite, held)
    differences = sbom.compare(made, held)
    if differences:
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise LockstepError(
            "the checkout's locks do not describe the image: " + "; ".join(differences[:_SHOWN]) + more,
            where=str(built.layout.path),
            fix=f"make image IMAGE={image} ARCH={arch}, then push",
        )
    return made


def recipe_of(matrix: Matrix, image: str, arch: Arch, built: OciImage) -> Recipe:
    """Return what an image was made from, as far as the checkout and the build's record say."""
    builder = {"lockstep": __version__} | {
        key: str(value) for key, value in _record(image, arch).get("builder", {}).items()
    }
    chosen = matrix.images[image]
    # What is rendered for a narrowed image lies in build/ alone; it follows from the same files as the whole one's.
    whole = chosen.of if isinstance(chosen, Narrowed) else image
    return Recipe(
        image=image,
        arch=arch,
        base=base_of(image, arch),
        compression=built.layers[-1].compression if built.layers else "none",
        epoch=matrix.epoch,
        commit=attest.commit_of(),
        source=matrix.source,
        inputs=attest.inputs_of(whole, arch, chosen.backends),
        builder=builder,
        part=told(matrix, image),
    )


def base_of(image: str, arch: Arch) -> str:
    """Return the base that an image was built on: what the build's record says, else BASE, else the default."""
    return str(_record(image, arch).get("base") or os.environ.get("BASE") or "bootstrap")


def _record(image: str, arch: Arch) -> dict[str, Any]:
    path = paths.BUILD / "records" / f"{image}.{arch}.json"
    if not path.is_file():
        return {}
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def _debs(matrix: Matrix, arch: Arch, base: str) -> tuple[list[LockedDeb], str]:
    """Return the locked Debian packages of the base's runtime part and their suite; none for a base without a lock."""
    path = Path(paths.ROOT) / "bases" / base / f"runtime.{arch}.txt"
    if not path.is_file():
        return [], ""
    lock = read_deb_lock(path)
    return list(lock.debs), lock.suite
