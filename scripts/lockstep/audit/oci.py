"""Read an image's layers where they lie: an OCI layout folder, or the tar of one or of `docker save`.

Nothing is unpacked and nothing is run: each layer is read once as a stream. What was learned of a layer is kept under
its digest in the state folder, so a later audit reads only the layers that changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lockstep.errors import LockstepError

_CHUNK = 1 << 20
_FIX = "build or pull the image again"
_INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")


@dataclass(frozen=True)
class LayerBlob:
    """A layer as the manifest lists it. size is of the blob in bytes; digest is `sha256:…` of the blob."""

    digest: str
    media_type: str
    size: int
    member: str


@dataclass(frozen=True)
class ImageSource:
    """An image that can be read: where it lies, its config, manifest digest and layers, bottom first."""

    path: Path
    digest: str
    config: dict[str, Any]
    layers: tuple[LayerBlob, ...]

    @property
    def architecture(self) -> str:
        """The OCI architecture: amd64 or arm64."""
        return str(self.config.get("architecture", ""))


def is_image(path: Path) -> bool:
    """Tell whether a path is an OCI layout folder or an image's tar, from its own marks."""
    if path.is_dir():
        return (path / "oci-layout").is_file() and (path / "index.json").is_file()
    if not path.is_file() or not tarfile.is_tarfile(path):
        return False
    with tarfile.open(path, "r:*") as archive:
        return any(name in ("oci-layout", "index.json", "manifest.json") for name in _first_names(archive))


def open_image(path: Path, docker_arch: str = "") -> ImageSource:
    """Return the image at a path; of an index, the one for `docker_arch` (amd64, arm64). LockstepError where broken."""
    try:
        with _Blobs(path) as blobs:
            return _open(path, blobs, docker_arch)
    except (OSError, KeyError, TypeError, AttributeError, ValueError, tarfile.TarError) as error:
        raise LockstepError(f"is no readable image ({error})", where=str(path), fix=_FIX) from None


def _open(path: Path, blobs: _Blobs, docker_arch: str) -> ImageSource:
    index = blobs.maybe("index.json")
    if index is None:
        return _docker_archive(path, blobs)
    manifests = _manifests(json.loads(index)["manifests"], blobs)
    fits = [item for item in manifests if docker_arch in ("", item[1].get("architecture", docker_arch))]
    if len(fits) != 1:
        have = ", ".join(str(item[1].get("architecture", "unknown")) for item in manifests) or "none"
        raise LockstepError(
            f"holds {len(fits)} images that fit (architectures: {have})", where=str(path), fix="name one with --arch"
        )
    digest = fits[0][0]
    manifest = json.loads(blobs.read(blob_path(digest)))
    config = json.loads(blobs.read(blob_path(manifest["config"]["digest"])))
    layers = tuple(
        LayerBlob(item["digest"], item["mediaType"], item["size"], blob_path(item["digest"]))
        for item in manifest["layers"]
    )
    return ImageSource(path, digest, config, layers)


def _manifests(descriptors: list[dict[str, Any]], blobs: _Blobs) -> list[tuple[str, dict[str, Any]]]:
    """Return (digest, platform) of every image manifest; nested indexes are followed, attestations left out."""
    found: list[tuple[str, dict[str, Any]]] = []
    for item in descriptors:
        platform = item.get("platform") or {}
        if platform.get("architecture") == "unknown" or "vnd.docker.reference.type" in item.get("annotations", {}):
            continue
        if item.get("mediaType") in _INDEX_TYPES:
            found += _manifests(json.loads(blobs.read(blob_path(item["digest"])))["manifests"], blobs)
        else:
            found.append((item["digest"], platform))
    return found


def _docker_archive(path: Path, blobs: _Blobs) -> ImageSource:
    """Read the manifest.json of an older `docker save`, whose layers are named by path and not by digest."""
    listed = json.loads(blobs.read("manifest.json"))
    if len(listed) != 1:
        raise LockstepError(f"holds {len(listed)} images", where=str(path), fix="save one image")
    raw = blobs.read(listed[0]["Config"])
    config = json.loads(raw)
    diffs = config["rootfs"]["diff_ids"]
    layers = tuple(
        LayerBlob(digest, "application/vnd.docker.image.rootfs.diff.tar", blobs.size(member), member)
        for digest, member in zip(diffs, listed[0]["Layers"], strict=True)
    )
    return ImageSource(path, f"sha256:{hashlib.sha256(raw).hexdigest()}", config, layers)


def blob_path(digest: str) -> str:
    """Return where a blob lies in a layout (OCI image layout 1.1)."""
    algorithm, _, name = digest.partition(":")
    if algorithm not in ("sha256", "sha512") or not name.isalnum():
        raise ValueError(f"{digest} is no digest")
    return f"blobs/{algorithm}/{name}"


class _Blobs(contextlib.AbstractContextManager["_Blobs"]):
    """The files of a layout, in a folder or in a tar."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._archive = None if path.is_dir() else tarfile.open(path, "r:*")  # noqa: SIM115
        # `tar -c .` writes ./index.json where docker and skopeo write index.json.
        members = self._archive.getmembers() if self._archive else []
        self._members = {member.name.removeprefix("./"): member for member in members}

    def __exit__(self, *_: object) -> None:
        if self._archive is not None:
            self._archive.close()

    def open(self, name: str) -> IO[bytes]:
        if self._archive is None:
            return (self._path / name).open("rb")
        member = self._members.get(name)
        stream = self._archive.extractfile(member) if member else None
        if stream is None:
            raise FileNotFoundError(f"{name} is missing")
        return stream

    def read(self, name: str) -> bytes:
        with self.open(name) as stream:
            return stream.read()

    def maybe(self, name: str) -> bytes | None:
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int:
        return (self._path / name).stat().st_size if self._archive is None else self._members[name].size


@contextlib.contextmanager
def layer_tar(source: ImageSource, layer: LayerBlob) -> Iterator[tarfile.TarFile]:
    """Open one layer as a tar stream, decompressed by its own magic; LockstepError where it ends early or is damaged.

    The blob's digest is computed on the way and compared at the end, when all of it was read.
    """
    where = f"{source.path} {layer.digest[:19]}"
    with _Blobs(source.path) as blobs, blobs.open(layer.member) as raw:
        head = raw.read(4)
        raw.seek(0)
        program = _decompressor(head)
        pump = _Pump(raw, program)
        try:
            with pump, tarfile.open(fileobj=pump.output, mode="r|") as archive:
                yield archive
                while pump.output.read(_CHUNK):
                    pass
        except (tarfile.TarError, EOFError, OSError) as error:
            raise LockstepError(f"the layer is damaged ({error})", where=where, fix=_FIX) from None
        digest = f"sha256:{pump.digest}"
        # The layers of an older docker archive are named by their content uncompressed, or by nothing at all.
        named = layer.member.startswith("blobs/") and layer.digest.startswith("sha256:")
        if pump.status or (named and digest != layer.digest):
            raise LockstepError("the layer is damaged: its content does not match its digest", where=where, fix=_FIX)


def check_size(source: ImageSource, layer: LayerBlob) -> None:
    """Raise LockstepError where a layer's blob is missing or not as long as the manifest says."""
    where = f"{source.path} {layer.digest[:19]}"
    try:
        with _Blobs(source.path) as blobs:
            size = blobs.size(layer.member)
    except (OSError, KeyError, tarfile.TarError):
        raise LockstepError("the layer is missing", where=where, fix=_FIX) from None
    if size != layer.size:
        raise LockstepError(f"the layer is damaged: {size} bytes of {layer.size}", where=where, fix=_FIX)


def _decompressor(head: bytes) -> list[str]:
    if head == b"\x28\xb5\x2f\xfd":
        if shutil.which("zstd") is None:
            raise LockstepError("the program zstd is not installed", fix="install it (Debian: apt-get install zstd)")
        return ["zstd", "-dcq"]
    if head[:2] == b"\x1f\x8b":
        return ["pigz", "-dc"] if shutil.which("pigz") else ["gzip", "-dc"]
    return ["cat"]


class _Pump:
    """Feed a stream through a program in a thread of its own, hashing what goes in."""

    def __init__(self, source: IO[bytes], program: list[str]) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ}
        )
        assert self._process.stdout is not None
        self.output: IO[bytes] = self._process.stdout
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.status = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def _run(self) -> None:
        assert self._process.stdin is not None
        # A source that breaks off leaves the program with half a stream, which its exit status then tells.
        with contextlib.suppress(OSError, ValueError, tarfile.TarError), self._process.stdin as sink:
            while chunk := self._source.read(_CHUNK):
                self._hash.update(chunk)
                sink.write(chunk)

    def __enter__(self) -> _Pump:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()
        self._thread.join()
        self.status = self._process.wait()


def _first_names(archive: tarfile.TarFile) -> Iterator[str]:
    for _ in range(10_000):
        member = archive.next()
        if member is None:
            return
        yield member.name.removeprefix("./")
