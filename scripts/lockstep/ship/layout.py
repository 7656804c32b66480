"""Read an OCI image layout directory: the image of one architecture, its configuration and its layers.

Layouts are what `docker buildx build --output type=oci,tar=false` and `skopeo copy … oci:DIR` leave. The format is
https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md; Docker's schema 2 types are read as well.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.arch import Arch
from lockstep.errors import LockstepError

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX_TYPES = frozenset({OCI_INDEX, DOCKER_LIST})
MANIFEST_TYPES = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})

_COMPRESSIONS = {
    "application/vnd.oci.image.layer.v1.tar": "none",
    "application/vnd.oci.image.layer.v1.tar+gzip": "gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd": "zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "none",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "zstd",
}


@dataclass(frozen=True)
class Platform:
    """An OCI platform, for instance linux/arm64; `variant` is mostly empty."""

    os: str
    architecture: str
    variant: str = ""


@dataclass(frozen=True)
class Descriptor:
    """What points to a blob: its type, digest, size in bytes, and for a manifest in an index its platform."""

    media_type: str
    digest: str
    size: int
    platform: Platform | None = None
    annotations: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Descriptor:
        """Read a descriptor from its JSON object; KeyError where a required property is missing."""
        platform = data.get("platform")
        return cls(
            media_type=data.get("mediaType", ""),
            digest=data["digest"],
            size=int(data["size"]),
            platform=Platform(platform["os"], platform["architecture"], platform.get("variant", ""))
            if platform
            else None,
            annotations=dict(data.get("annotations") or {}),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, with the properties in the order that BuildKit writes them."""
        made: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.annotations:
            made["annotations"] = self.annotations
        if self.platform:
            made["platform"] = {"architecture": self.platform.architecture, "os": self.platform.os}
            if self.platform.variant:
                made["platform"]["variant"] = self.platform.variant
        return made

    @property
    def compression(self) -> str:
        """How a layer is packed: `none`, `gzip` or `zstd`; LockstepError where the type is none of a layer's."""
        try:
            return _COMPRESSIONS[self.media_type]
        except KeyError:
            raise LockstepError(
                f"the layer {self.digest} has the media type {self.media_type!r}",
                fix="build with COMPRESSION=zstd or COMPRESSION=gzip",
            ) from None


@dataclass(frozen=True)
class OciImage:
    """One architecture's image in a layout."""

    layout: Layout
    descriptor: Descriptor
    manifest: dict[str, Any]

    @cached_property
    def config_descriptor(self) -> Descriptor:
        """The descriptor of the configuration."""
        return Descriptor.from_json(self.manifest["config"])

    @cached_property
    def layers(self) -> list[Descriptor]:
        """The layers, lowest first."""
        return [Descriptor.from_json(each) for each in self.manifest["layers"]]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The image configuration (https://github.com/opencontainers/image-spec/blob/v1.1.0/config.md)."""
        data: dict[str, Any] = json.loads(self.layout.read(self.config_descriptor))
        return data

    @property
    def platform(self) -> Platform:
        """The platform that the configuration states."""
        return Platform(self.config["os"], self.config["architecture"], self.config.get("variant", ""))

    @property
    def blobs(self) -> list[Descriptor]:
        """Configuration and layers."""
        return [self.config_descriptor, *self.layers]

    @property
    def total_size(self) -> int:
        """Bytes of manifest, configuration and distinct layers."""
        return self.descriptor.size + sum({each.digest: each.size for each in self.blobs}.values())

    def check_sizes(self) -> None:
        """Raise LockstepError where a blob is missing or has another size than stated: a build or copy that died."""
        for each in self.blobs:
            path = self.layout.blob(each.digest)
            size = path.stat().st_size if path.is_file() else -1
            if size != each.size:
                state = "is missing" if size < 0 else f"has {size} bytes, not {each.size}"
                raise LockstepError(
                    f"the blob {each.digest} {state}", where=str(self.layout.path), fix="build the image again"
                )


@dataclass(frozen=True)
class Layout:
    """An OCI image layout directory."""

    path: Path

    def blob(self, digest: str) -> Path:
        """Return the path of a blob, whether it exists or not."""
        algorithm, _, value = digest.partition(":")
        return self.path / "blobs" / algorithm / value

    def read(self, descriptor: Descriptor) -> bytes:
        """Return the bytes of a small blob (a manifest or a configuration), checked against its digest."""
        try:
            data = self.blob(descriptor.digest).read_bytes()
        except FileNotFoundError:
            raise LockstepError(
                f"the blob {descriptor.digest} is missing", where=str(self.path), fix="build the image again"
            ) from None
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != descriptor.digest:
            raise LockstepError(
                f"the blob {descriptor.digest} holds other bytes", where=str(self.path), fix="build the image again"
            )
        return data

    @cached_property
    def images(self) -> list[OciImage]:
        """The images of real platforms, those of nested indexes too; attestations (platform unknown) are left out."""
        try:
            index = json.loads((self.path / "index.json").read_bytes())
        except FileNotFoundError:
            raise LockstepError(
                "there is no OCI layout (no index.json)", where=str(self.path), fix="build the image first"
            ) from None
        return list(self._walk([Descriptor.from_json(each) for each in index["manifests"]]))

    def _walk(self, descriptors: list[Descriptor]) -> list[OciImage]:
        found: dict[str, OciImage] = {}
        for each in descriptors:
            if each.platform and each.platform.os == "unknown":
                continue
            data = json.loads(self.read(each))
            if "manifests" in data:
                nested = self._walk([Descriptor.from_json(child) for child in data["manifests"]])
                found.update({image.descriptor.digest: image for image in nested})
            else:
                found[each.digest] = OciImage(self, each, data)
        return list(found.values())

    def image(self, arch: Arch | None = None) -> OciImage:
        """Return the image for `arch`, or the only one; LockstepError where there is none or a choice is needed."""
        fitting = [each for each in self.images if arch is None or each.platform.architecture == arch.docker]
        if len(fitting) == 1:
            return fitting[0]
        there = ", ".join(sorted(each.platform.architecture for each in self.images)) or "nothing"
        raise LockstepError(
            f"the layout holds {there}" + (f", and {arch.docker} is wanted once" if arch else ""),
            where=str(self.path),
            fix="name the architecture with ARCH=" if arch is None else f"build the image with ARCH={arch}",
        )


def put_blob(layout: Layout, body: bytes, media_type: str) -> Descriptor:
    """Write a small blob into a layout and return its descriptor."""
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    path = layout.blob(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return Descriptor(media_type, digest, len(body))
