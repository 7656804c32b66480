"""What the tests of shipping share: handmade OCI layouts, and Debian's registry on a free port."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lockstep.ship.layout import DOCKER_MANIFEST, OCI_MANIFEST

EPOCH = 1767225600
_TYPES = {
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "none": "application/vnd.oci.image.layer.v1.tar",
    "docker": "application/vnd.docker.image.rootfs.diff.tar.gzip",
}

needs_skopeo = pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")
needs_registry = pytest.mark.skipif(
    shutil.which("docker-registry") is None or shutil.which("skopeo") is None,
    reason="docker-registry and skopeo are not installed",
)
needs_squashfs = pytest.mark.skipif(
    shutil.which("mksquashfs") is None or shutil.which("unsquashfs") is None, reason="squashfs-tools is not installed"
)
needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed")


@dataclass(frozen=True)
class Member:
    """A member of a handmade layer; kind is one of f, d, l (symbolic link), h (hard link), w (whiteout)."""

    path: str
    kind: str = "f"
    data: bytes = b""
    link: str = ""
    mode: int = 0o644
    uid: int = 0
    mtime: int = EPOCH
    pax: dict[str, str] = field(default_factory=dict)


def layer(members: Sequence[Member], layout_format: int = tarfile.PAX_FORMAT) -> bytes:
    """Return the tar archive of a layer."""
    kinds = {
        "f": tarfile.REGTYPE,
        "d": tarfile.DIRTYPE,
        "l": tarfile.SYMTYPE,
        "h": tarfile.LNKTYPE,
        "w": tarfile.REGTYPE,
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=layout_format) as archive:
        for each in members:
            info = tarfile.TarInfo(each.path)
            info.type = kinds[each.kind]
            info.mode = 0o755 if each.kind == "d" and each.mode == 0o644 else each.mode
            info.uid = info.gid = each.uid
            info.mtime = each.mtime
            info.linkname = each.link
            info.size = len(each.data)
            info.pax_headers = dict(each.pax)
            archive.addfile(info, io.BytesIO(each.data))
    return buffer.getvalue()


def pack(data: bytes, compression: str) -> bytes:
    """Compress a layer."""
    if compression == "zstd":
        return subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout
    return data if compression == "none" else gzip.compress(data, mtime=0)


def write_layout(
    path: Path,
    layers: Sequence[bytes],
    *,
    arch: str = "amd64",
    compression: str = "gzip",
    settings: dict[str, Any] | None = None,
) -> str:
    """Write an OCI layout with one image, its layers given as tar archives; return the manifest's digest.

    compression: zstd, gzip, none, or docker for Docker's own media types with gzip.
    """
    blobs = path / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def put(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    docker = compression == "docker"
    config = {
        "architecture": arch,
        "os": "linux",
        "config": settings or {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers]},
    }
    config_type = (
        "application/vnd.docker.container.image.v1+json" if docker else "application/vnd.oci.image.config.v1+json"
    )
    manifest_type = DOCKER_MANIFEST if docker else OCI_MANIFEST
    manifest = {
        "schemaVersion": 2,
        "mediaType": manifest_type,
        "config": put(json.dumps(config).encode(), config_type),
        "layers": [put(pack(each, compression), _TYPES[compression]) for each in layers],
    }
    entry = put(json.dumps(manifest).encode(), manifest_type)
    entry["platform"] = {"architecture": arch, "os": "linux"}
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return str(entry["digest"])


@dataclass
class TestRegistry:
    """A running docker-registry."""

    __test__ = False

    host: str
    log: Path
    process: subprocess.Popen[bytes]

    def requests(self, method: str) -> list[str]:
        """Return the paths (queries cut off) that were asked for with `method`, in order."""
        words = [line.split('"') for line in self.log.read_text(errors="replace").splitlines() if '"' in line]
        asked = [part.split() for line in words for part in line if part.startswith(f"{method} /v2/")]
        return [part[1].partition("?")[0] for part in asked]


@contextlib.contextmanager
def registry(folder: Path, *, htpasswd: Path | None = None, cert: Path | None = None) -> Iterator[TestRegistry]:
    """Run Debian's docker-registry on a free loopback port until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": False}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    if htpasswd is not None:
        settings["auth"] = {"htpasswd": {"realm": "test", "path": str(htpasswd)}}
    if cert is not None:
        settings["http"]["tls"] = {"certificate": str(cert / "server.crt"), "key": str(cert / "server.key")}
    (folder / "config.yml").write_text(json.dumps(settings))
    log = folder / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")], stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            _wait_for(port, process, log)
            yield TestRegistry(f"127.0.0.1:{port}", log, process)
        finally:
            process.terminate()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the port takes connections: there is no other sign that the registry is up."""
    for _ in range(200):
        if process.poll() is not None:
            raise RuntimeError(log.read_text())
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError("docker-registry did not come up")


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without anything that says how to reach registries, and with `more`."""
    drop = {"REGISTRY", "REGISTRY_AUTH_FILE", "REGISTRY_CA", "REGISTRY_INSECURE", "DOCKER_CONFIG", "XDG_RUNTIME_DIR"}
    return {key: value for key, value in os.environ.items() if key not in drop} | more
