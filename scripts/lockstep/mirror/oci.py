"""Mirrored wheels in a registry: each is an OCI artifact of one layer, tagged with the wheel's hash.

https://github.com/opencontainers/image-spec/blob/v1.1.0/manifest.md#guidelines-for-artifact-usage; skopeo moves it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.matrix import Matrix
from lockstep.mirror import store as mirror_store
from lockstep.mirror.check import check_bytes
from lockstep.mirror.store import MIRROR, MirroredWheel
from lockstep.run import run
from lockstep.ship.access import Access
from lockstep.ship.refs import Ref, parse

ARTIFACT_TYPE = "application/vnd.lockstep.wheel.v1"
_LAYER_TYPE = "application/vnd.lockstep.wheel.v1+zip"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_RETRIES = "3"


def _wheels(matrix: Matrix, store: Path) -> list[MirroredWheel]:
    """Return every declared wheel whose hash is known."""
    found = [
        mirror_store.known(matrix, package, arch, store)
        for package, spec in matrix.mirror.items()
        for arch in matrix.targets()
        if spec.wheel(arch) is not None
    ]
    return [wheel for wheel in found if wheel is not None]


def push_all(matrix: Matrix, to: str, store: Path = MIRROR) -> Iterator[str]:
    """Push every mirrored wheel to REGISTRY/NAME and yield its reference; what is there is not sent again."""
    wheels = [mirror_store.require(matrix, item.package, item.arch, store) for item in _wheels(matrix, store)]
    if not wheels:
        raise LockstepError(
            "no wheel is mirrored, so there is nothing to push", where="versions.yaml mirror", fix="run `make mirror`"
        )
    target = parse(to)
    for wheel in wheels:
        reference = target.with_tag(tag_of(wheel))
        with tempfile.TemporaryDirectory(prefix=".push-", dir=store) as text:
            write_layout(Path(text), wheel)
            _skopeo("dest", f"oci:{text}:wheel", reference, reference)
        yield f"{reference} {wheel.filename}"


def pull_all(matrix: Matrix, source: str, store: Path = MIRROR) -> Iterator[str]:
    """Pull every declared wheel that the store lacks from REGISTRY/NAME, check it, keep it; yield what was done."""
    origin = parse(source)
    wheels = _wheels(matrix, store)
    if not wheels:
        raise LockstepError(
            "no wheel's hash is known, so there is nothing to pull",
            where="versions.yaml mirror",
            fix="run `make mirror` where the wheel's index can be reached, and commit versions.yaml",
        )
    with mirror_store.alone(store):
        for left in store.glob(".pull-*"):
            shutil.rmtree(left)  # of a process that was killed: the lock is ours
        for wheel in wheels:
            if wheel.path.is_file():
                check_bytes(wheel.path, wheel.sha256, str(wheel.path.parent))
                yield f"{wheel.filename} is there"
                continue
            reference = origin.with_tag(tag_of(wheel))
            with tempfile.TemporaryDirectory(prefix=".pull-", dir=store) as text:
                _skopeo("src", reference, f"oci:{text}:wheel", reference)
                blob = Path(text) / "blobs" / "sha256" / wheel.sha256
                if not blob.is_file():
                    raise LockstepError(
                        f"the artifact does not hold {wheel.filename} (sha256 {wheel.sha256[:16]}…)",
                        where=str(reference),
                        fix="push it again with `make mirror-push`",
                    )
                check_bytes(blob, wheel.sha256, str(reference))
                wheel.path.parent.mkdir(parents=True, exist_ok=True)
                blob.chmod(0o644)
                blob.replace(wheel.path)
            yield f"{wheel.filename} from {reference}"


def tag_of(wheel: MirroredWheel) -> str:
    """Return the tag of a wheel's artifact: its whole hash, so that a tag never means two wheels."""
    return f"sha256-{wheel.sha256}"


def write_layout(folder: Path, wheel: MirroredWheel) -> None:
    """Write an OCI layout that holds one artifact named `wheel`; the wheel itself is a link into the store."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    try:
        os.link(wheel.path, blobs / wheel.sha256)
    except OSError:
        shutil.copyfile(wheel.path, blobs / wheel.sha256)
    title = {"org.opencontainers.image.title": wheel.filename}
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": _blob(blobs, _EMPTY, _EMPTY_TYPE),
        "layers": [
            {
                "mediaType": _LAYER_TYPE,
                "digest": f"sha256:{wheel.sha256}",
                "size": wheel.path.stat().st_size,
                "annotations": title,
            }
        ],
    }
    entry = _blob(blobs, json.dumps(manifest, sort_keys=True).encode(), _MANIFEST_TYPE)
    entry["annotations"] = {"org.opencontainers.image.ref.name": "wheel"}
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))


def _blob(blobs: Path, data: bytes, media_type: str) -> dict[str, object]:
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _skopeo(side: str, source: str | Ref, target: str | Ref, reference: Ref) -> None:
    names = [item.skopeo if isinstance(item, Ref) else item for item in (source, target)]
    with Access.of(reference.registry).skopeo(side) as options:
        run(
            ["skopeo", "--insecure-policy", "copy", "--preserve-digests", "--retry-times", _RETRIES, *options, *names],
            fix=f"check the name and the login (skopeo login {reference.registry})",
        )
