"""Where an image's layers are taken from: a layout on disk, a registry, a tarball, or the engine's store."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep import console
from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.run import run
from lockstep.ship import refs
from lockstep.ship.access import Access
from lockstep.ship.flatten import LayerFile
from lockstep.ship.layout import Layout, OciImage
from lockstep.ship.registry import Registry

_POLICIES = (Path("/etc/containers/policy.json"), Path.home() / ".config/containers/policy.json")


@dataclass(frozen=True)
class Source:
    """An image ready to be read."""

    config: dict[str, Any]
    """The image configuration."""
    layers: list[LayerFile]
    """Lowest first."""
    provenance: str
    """The URI that `enroot import` would have been given, or the manifest's digest where there is none."""
    checked: bool = False
    """Whether the layers' digests were verified when they were fetched."""


def of_image(image: OciImage, provenance: str = "", *, checked: bool = False) -> Source:
    """Return the source for an image in a layout. Missing or short blobs are a LockstepError."""
    image.check_sizes()
    layers = [LayerFile(image.layout.blob(each.digest), each.compression, each.digest) for each in image.layers]
    return Source(image.config, layers, provenance or f"oci://{image.descriptor.digest}", checked)


@contextlib.contextmanager
def open_source(text: str, arch: Arch, scratch: Path, ref: str = "") -> Iterator[Source]:
    """Yield the source that `text` names, for `arch`.

    text: an OCI layout directory; a .tar of `docker save` or `skopeo copy … oci-archive:`; docker-daemon:NAME for an
    image in the engine's store; else a reference in a registry. ref: the reference to write as the provenance where
    text is none. Fetched files live in a folder below `scratch` until the block ends.
    """
    given = refs.parse(ref).enroot_canonical if ref else ""
    path = Path(text)
    if path.is_dir():
        yield of_image(Layout(path).image(arch), given)
        return
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".lockstep-fetch-", dir=scratch) as folder:
        if path.is_file():
            yield _tarball(path, arch, Path(folder), given)
        elif text.startswith("docker-daemon:"):
            saved = Path(folder) / "saved.tar"
            name = text.removeprefix("docker-daemon:")
            run(["docker", "image", "save", "-o", saved, name], fix="look at `docker image ls` for the name")
            yield _tarball(saved, arch, Path(folder), given)
        else:
            yield _registry(refs.parse(text), arch, Path(folder), given)


def _registry(ref: refs.Ref, arch: Arch, folder: Path, given: str) -> Source:
    access = Access.of(ref.registry)
    digest = _digest_for(ref, arch, access)
    console.note(f"fetching {ref.repository}@{digest}")
    policy = [] if any(each.is_file() for each in _POLICIES) else ["--insecure-policy"]
    with access.skopeo("src") as options:
        options += [ref.with_digest(digest).skopeo, f"oci:{folder}/layout:image"]
        run(
            ["skopeo", *policy, "copy", "--preserve-digests", "--retry-times", "3", *options],
            fix=f"check the login (skopeo login {ref.registry}) and the free space in {folder.parent}",
        )
    image = Layout(folder / "layout").image()
    if image.descriptor.digest != digest:
        raise LockstepError(f"the image came as {image.descriptor.digest}, not {digest}", where=str(ref))
    # skopeo compares every blob with its digest as it comes in.
    return of_image(image, given or ref.enroot_canonical, checked=True)


def _digest_for(ref: refs.Ref, arch: Arch, access: Access) -> str:
    """Return the digest of the manifest for `arch` under a reference to an index or an image."""
    manifest = Registry(ref, access).manifest(ref.reference)
    if manifest is None:
        raise LockstepError("there is no such image", where=str(ref), fix="check name and tag")
    if "manifests" not in manifest.data:
        return manifest.digest
    for each in manifest.data["manifests"]:
        if each.get("platform", {}).get("architecture") == arch.docker:
            return str(each["digest"])
    there = ", ".join(str(each.get("platform", {}).get("architecture")) for each in manifest.data["manifests"])
    raise LockstepError(f"the index has no {arch.docker} (it has {there})", where=str(ref), fix="give another ARCH=")


def _tarball(path: Path, arch: Arch, folder: Path, given: str) -> Source:
    """Unpack a tarball of an image: an OCI layout, or the older `docker save` format with a manifest.json."""
    size = path.stat().st_size
    free = shutil.disk_usage(folder).free
    if free < size:
        raise LockstepError(
            f"{size} bytes are needed to unpack it and {free} are free", where=str(folder), fix="free some space"
        )
    into = folder / "tarball"
    into.mkdir()
    done = subprocess.run(["tar", "-xf", path, "-C", into], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LockstepError(f"it is no tar archive: {done.stderr.strip()[-200:]}", where=str(path))
    if path.parent == folder:
        path.unlink()
    if (into / "index.json").is_file():
        return of_image(Layout(into).image(arch), given)
    listed = into / "manifest.json"
    if not listed.is_file():
        raise LockstepError(
            "it holds neither index.json nor manifest.json", where=str(path), fix="make it with `docker save`"
        )
    images = json.loads(listed.read_bytes())
    if len(images) != 1:
        raise LockstepError(f"it holds {len(images)} images", where=str(path), fix="save one image")
    config = json.loads((into / images[0]["Config"]).read_bytes())
    if config["architecture"] != arch.docker:
        raise LockstepError(
            f"it holds an image for {config['architecture']}, not {arch.docker}", where=str(path), fix="give ARCH="
        )
    layers = []
    for name, diff_id in zip(images[0]["Layers"], config["rootfs"]["diff_ids"], strict=True):
        file = Path(os.path.realpath(into / name))
        if not file.is_relative_to(os.path.realpath(into)):
            raise LockstepError(f"its layer {name!r} lies outside", where=str(path))
        packing = _packing(file)
        # A packed layer has another digest than its diff_id, and the archive does not state it.
        layers.append(LayerFile(file, packing, diff_id if packing == "none" else ""))
    return Source(config, layers, given or f"docker-archive://{images[0]['Config']}")


def _packing(file: Path) -> str:
    """Tell how a layer is packed by its first bytes (RFC 1952 2.3.1 and RFC 8878 3.1.1)."""
    with file.open("rb") as stream:
        start = stream.read(4)
    return "gzip" if start.startswith(b"\x1f\x8b") else "zstd" if start == b"\x28\xb5\x2f\xfd" else "none"
