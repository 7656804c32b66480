"""Push built images: each architecture by digest, then one index, then the tag, last.

skopeo uploads; it asks for each blob first and sends only what the repository lacks. The tag moves in one request at
the very end, so a push that dies at any point leaves it where it was. Nothing is rebuilt or recompressed: skopeo is
told to keep digests, and what the registry then holds is read back and compared with build/digests.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep import console
from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.run import run
from lockstep.ship import digests
from lockstep.ship.access import Access
from lockstep.ship.layout import (
    DOCKER_LIST,
    DOCKER_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Layout,
    OciImage,
    put_blob,
)
from lockstep.ship.refs import Ref
from lockstep.ship.registry import Registry

_RETRIES = "3"


@dataclass(frozen=True)
class Index:
    """An index of the images of several architectures: its bytes, digest and type."""

    body: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """The digest of the bytes."""
        return f"sha256:{hashlib.sha256(self.body).hexdigest()}"


def index_of(images: Sequence[OciImage]) -> Index:
    """Return the index that lists `images` by real platform and nothing else, in the order of their architectures.

    Attestations are kept out: they are referrers (attest.py), because an index entry of platform unknown/unknown makes
    clients fail that do not know it (NVIDIA/dcgm-exporter#676). The bytes depend on the images alone. Images of
    Docker's media types get Docker's list, since a registry gives a client that accepts one kind only that kind.
    """
    kinds = {each.descriptor.media_type for each in images}
    if not images or len(kinds) != 1:
        raise LockstepError(
            "the images have no media type in common: " + ", ".join(sorted(kinds)), fix="build them all alike"
        )
    media_type = {OCI_MANIFEST: OCI_INDEX, DOCKER_MANIFEST: DOCKER_LIST}[kinds.pop()]
    entries = [
        Descriptor(each.descriptor.media_type, each.descriptor.digest, each.descriptor.size, each.platform).to_json()
        for each in sorted(images, key=lambda image: image.platform.architecture)
    ]
    architectures = [entry["platform"]["architecture"] for entry in entries]
    if len(set(architectures)) != len(architectures) or "unknown" in architectures:
        raise LockstepError("an architecture is there twice or unknown: " + ", ".join(architectures))
    body = json.dumps({"schemaVersion": 2, "mediaType": media_type, "manifests": entries}, separators=(",", ":"))
    return Index(body.encode(), media_type)


def built_images(image: str, arches: Sequence[Arch]) -> list[OciImage]:
    """Return what the build recorded for `image`, whole and unchanged; LockstepError names what is missing."""
    found = []
    for arch in arches:
        entry = digests.built(image, arch)
        held = Layout(digests.layout_of(entry)).image(arch)
        if held.descriptor.digest != entry.digest:
            raise LockstepError(
                f"the layout holds {held.descriptor.digest}, but {entry.digest} was built and probed",
                where=str(held.layout.path),
                fix=f"make image IMAGE={image} ARCH={arch}",
            )
        held.check_sizes()
        found.append(held)
    return found


def push_by_digest(images: Sequence[OciImage], target: Ref) -> None:
    """Upload each image under its digest only. No tag appears or moves; a retry sends only what is missing."""
    access = Access.of(target.registry)
    registry = Registry(target, access)
    for each in images:
        name = f"{each.platform.os}/{each.platform.architecture}"
        if registry.manifest(each.descriptor.digest) is None:
            console.note(f"pushing {name} {each.descriptor.digest} ({console.megabytes(each.total_size)} MB)")
            with tempfile.TemporaryDirectory(prefix="lockstep-push-") as scratch:
                layout = write_layout(Path(scratch), [each], [each.descriptor])
                copy(layout, target.with_digest(each.descriptor.digest), access)
        else:
            console.note(f"{name} {each.descriptor.digest} is there")
        read_back(registry, each.descriptor.digest, each.descriptor.digest)


def push_index(
    images: Sequence[OciImage], target: Ref, before_tag: Callable[[Index], None] = lambda _index: None
) -> Index:
    """Push the index of `images`, first under its digest and then, as the last request of all, under target's tag.

    before_tag is called in between, so that what belongs to the index (its signature) is there before anybody sees it.
    """
    access = Access.of(target.registry)
    registry = Registry(target, access)
    index = index_of(images)
    with tempfile.TemporaryDirectory(prefix="lockstep-push-") as scratch:
        layout = merged_layout(Path(scratch), images, index)
        if registry.manifest(index.digest) is None:
            copy(layout, target.with_digest(index.digest), access, whole=True)
        read_back(registry, index.digest, index.digest)
        before_tag(index)
        move_tag(layout, target, index, access)
    return index


def move_tag(layout: Layout, target: Ref, index: Index, access: Access) -> None:
    """Point target's tag at the index that the registry holds already, and read it back. No tag: nothing to do."""
    if target.tag:
        copy(layout, target, access, whole=True)
        read_back(Registry(target, access), target.tag, index.digest)
        console.note(f"{target} is {index.digest}")


def merge(
    target: Ref, wanted: Sequence[str], check: Callable[[Sequence[OciImage]], None] = lambda _images: None
) -> Index:
    """Make the index of images that are in the registry already, by their digests, and move target's tag to it.

    For CI, where each architecture is built and pushed on a runner of its own and one job merges. Every digest must be
    there: else LockstepError, and the tag stays. `check` sees the images before the tag moves, and may refuse.
    """
    access = Access.of(target.registry)
    registry = Registry(target, access)
    with tempfile.TemporaryDirectory(prefix="lockstep-merge-") as scratch:
        layout = Layout(Path(scratch))
        images = []
        for digest in wanted:
            manifest = registry.manifest(digest)
            if manifest is None:
                raise LockstepError(
                    f"{digest} is not in the registry, so the tag {target.tag} stays where it is",
                    where=target.repository,
                    fix="push that architecture first",
                )
            put_blob(layout, manifest.body, manifest.media_type)
            put_blob(layout, registry.blob(manifest.data["config"]["digest"]), "")
            images.append(OciImage(layout, Descriptor(manifest.media_type, digest, len(manifest.body)), manifest.data))
        check(images)
        index = index_of(images)
        write_layout(layout.path, [], [Descriptor(index.media_type, index.digest, len(index.body))])
        put_blob(layout, index.body, index.media_type)
        move_tag(layout, target, index, access)
    return index


def read_back(registry: Registry, reference: str, digest: str) -> None:
    """Raise LockstepError unless the registry gives exactly `digest` for `reference`."""
    held = registry.manifest(reference)
    if held is None or held.digest != digest:
        raise LockstepError(
            f"the registry holds {held.digest if held else 'nothing'} under {reference}, not {digest}",
            where=registry.ref.repository,
            fix="push again; if it stays so, something between here and the registry rewrites manifests",
        )


def copy(layout: Layout, target: Ref, access: Access, *, whole: bool = False) -> None:
    """Let skopeo copy the one entry of a layout to target, digests kept; `whole` for an index with its images.

    The entry has no name: skopeo finds a named one only if it is of OCI's types, an only one of whatever type.
    """
    with access.skopeo("dest") as options:
        run(
            # --insecure-policy: the policy file says whose images may be pulled; these come from our own build folder.
            ["skopeo", "--insecure-policy", "copy", "--preserve-digests", "--retry-times", _RETRIES]
            + (["--all"] if whole else [])
            + [*options, f"oci:{layout.path}", target.skopeo],
            fix=f"check the login (skopeo login {target.registry}) and push again: only what is missing is sent",
        )


def merged_layout(folder: Path, images: Sequence[OciImage], index: Index) -> Layout:
    """Make a layout in `folder` whose one entry is the index; blobs are links, not copies."""
    layout = write_layout(folder, images, [Descriptor(index.media_type, index.digest, len(index.body))])
    put_blob(layout, index.body, index.media_type)
    return layout


def write_layout(folder: Path, images: Sequence[OciImage], entries: Sequence[Descriptor]) -> Layout:
    """Make an OCI layout in `folder` with links to the blobs of `images`, and `entries` in its index.json."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    for image in images:
        for digest in {image.descriptor.digest, *(each.digest for each in image.blobs)}:
            made = blobs / digest.partition(":")[2]
            if not made.exists():
                # A symbolic link also reaches across file systems, which a hard link does not.
                made.symlink_to(image.layout.blob(digest).resolve())
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    manifests = [each.to_json() for each in entries]
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
    return Layout(folder)


def default_target(image: str, tag: str = "", env: Mapping[str, str] = os.environ) -> str:
    """Return $REGISTRY/IMAGE[:TAG]; LockstepError where REGISTRY (a host, with a namespace where wanted) is not set."""
    registry = env.get("REGISTRY", "").rstrip("/")
    if not registry:
        raise LockstepError("no registry is named", fix="set REGISTRY=HOST/NAMESPACE, or give REF=HOST/PATH")
    return f"{registry}/{image}" + (f":{tag}" if tag else "")
