"""build/digests.json: which digest each image has for each architecture, written by the build, read by ship."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lockstep import files, paths
from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.ship.layout import Layout

DIGESTS = paths.BUILD / "digests.json"


class Built(BaseModel):
    """One image of one architecture, as the build left it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """Digest of the image manifest."""
    media_type: str
    config: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """Digest of the image's configuration, the image ID that `docker images` shows."""
    layers: int
    size: int
    """Bytes of manifest, configuration and layers, as a registry stores them."""
    layout: str
    """The OCI layout directory, relative to the file's own folder where it lies below it."""


class Digests(BaseModel):
    """The whole record: image, then architecture."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    images: dict[str, dict[Arch, Built]] = Field(default_factory=dict)


def load(path: Path = DIGESTS) -> Digests:
    """Return the record, empty where no image has been built; LockstepError where the file is not ours."""
    if not path.is_file():
        return Digests()
    try:
        return Digests.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise LockstepError(
            f"it is no record of built images ({error.error_count()} faults)",
            where=str(path),
            fix="delete it and build again",
        ) from None


def record_digest(image: str, arch: Arch, digest: str, layout: Path, path: Path = DIGESTS) -> Built:
    """Note that `image` for `arch` is the manifest `digest` in the OCI layout directory `layout`; return the entry.

    The layout is read first, so that a digest that it does not hold, or a blob that is missing or short, is a
    LockstepError and is never recorded. Two builds may record at the same time: the file is changed under a lock.
    """
    held = Layout(layout).image(arch)
    if held.descriptor.digest != digest:
        raise LockstepError(
            f"the layout holds {held.descriptor.digest}, not {digest}", where=str(layout), fix="build the image again"
        )
    held.check_sizes()
    resolved, home = layout.resolve(), path.parent.resolve()
    entry = Built(
        digest=digest,
        media_type=held.descriptor.media_type,
        config=held.config_descriptor.digest,
        layers=len(held.layers),
        size=held.total_size,
        layout=str(resolved.relative_to(home)) if resolved.is_relative_to(home) else str(resolved),
    )
    with files.held_lock(path.parent / f".{path.name}.lock"):
        images = {name: dict(by_arch) for name, by_arch in load(path).images.items()}
        images.setdefault(image, {})[arch] = entry
        ordered = {name: dict(sorted(images[name].items())) for name in sorted(images)}
        data = Digests(images=ordered).model_dump(mode="json")
        files.write_text(path, json.dumps(data, indent=2) + "\n")
    return entry


def built(image: str, arch: Arch, path: Path = DIGESTS) -> Built:
    """Return the entry of one image and architecture; LockstepError with the command that makes it."""
    entry = load(path).images.get(image, {}).get(arch)
    if entry is None:
        raise LockstepError(
            f"{image} has not been built for {arch}", where=str(path), fix=f"make image IMAGE={image} ARCH={arch}"
        )
    return entry


def layout_of(entry: Built, path: Path = DIGESTS) -> Path:
    """Return the OCI layout directory of an entry."""
    return path.parent / entry.layout
