"""Small images for tests: two layers of five members, of which a test may change the upper one."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

from lockstep.ship.layout import Layout, OciImage

Change = Callable[[list[tuple[tarfile.TarInfo, bytes]]], object]


def content() -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return the members of a small layer: a folder, two files, a link of each sort."""
    made: list[tuple[tarfile.TarInfo, bytes]] = []

    def add(name: str, kind: bytes, data: bytes = b"", link: str = "") -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, len(data)
        info.mode, info.mtime = (0o755 if kind == tarfile.DIRTYPE else 0o644), 1767225600
        made.append((info, data))

    add("opt", tarfile.DIRTYPE)
    add("opt/a.txt", tarfile.REGTYPE, b"one\ntwo\nthree\n")
    add("opt/b.so", tarfile.REGTYPE, b"\0\1\2\3" * 64)
    add("opt/hard", tarfile.LNKTYPE, link="opt/a.txt")
    add("opt/soft", tarfile.SYMTYPE, link="a.txt")
    return made


def image(
    folder: Path, change: Change | None = None, level: int = 1, config: dict[str, object] | None = None
) -> OciImage:
    """Write an image of two layers, of which `change` may alter the second."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data), "mediaType": "application/octet-stream"}

    layers, diff_ids = [], []
    for number in range(2):
        items = content()
        if number and change:
            change(items)
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for info, data in items:
                archive.addfile(info, io.BytesIO(data))
        body = raw.getvalue()
        diff_ids.append(f"sha256:{hashlib.sha256(body).hexdigest()}")
        packed = gzip.compress(body, level, mtime=0)
        layers.append({**put(packed), "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"})
    settings = {"os": "linux", "architecture": "amd64", "config": config or {}, "rootfs": {"diff_ids": diff_ids}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {**put(json.dumps(settings).encode()), "mediaType": "application/vnd.oci.image.config.v1+json"},
        "layers": layers,
    }
    entry = {**put(json.dumps(manifest).encode()), "mediaType": "application/vnd.oci.image.manifest.v1+json"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return Layout(folder).image()
