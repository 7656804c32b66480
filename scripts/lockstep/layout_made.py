"""From what BuildKit exported to a whole OCI layout, by hard links, under its final name only when it is complete.

Two roads. Any builder writes an OCI layout over its client (`adopt`): every byte goes through the connection and is
written and hashed on this side. The private engine's store lies on this machine, so there the image is exported into
that store alone and the layout gets its blobs from it (`link`): containerd names a blob by its hash and never writes it
again, and a link keeps the bytes when the store lets go of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lockstep.engine import Engine
from lockstep.engine_private import engine_dir
from lockstep.errors import LockstepError
from lockstep.files import write_text

_CONTENT = "containerd/daemon/io.containerd.content.v1.content"
_AT_ONCE = 2  # hashing 4 GB takes 3 s on one processor with SHA instructions; the disk is what more would wait for


def store_of(engine: Engine) -> Path | None:
    """Return the content store that a build writes to, as an OCI layout's folder; None where it is out of reach.

    Only the private engine's is known to be on this machine, and only without a builder of the user's own.
    """
    store = engine_dir().data / _CONTENT
    if not engine.private or engine.env.get("BUILDX_BUILDER") or not store.is_dir():
        return None
    return store


def link(store: Path, descriptor: dict[str, Any], layout: Path) -> tuple[str, int]:
    """Make a layout of the image that `descriptor` names from the store's blobs; return digest and layer bytes.

    Blobs that the layout of before has in full length are taken from there. Others are hashed first, as BuildKit's
    client would do.
    FileNotFoundError where the store lacks one, LockstepError where one is damaged; the old layout stays then.
    """
    digest = str(descriptor["digest"])
    manifest = json.loads(_blob(store, digest).read_bytes())
    sizes = {item["digest"]: item["size"] for item in (descriptor, manifest["config"], *manifest["layers"])}

    def put(name: str, part: Path) -> None:
        known = _blob(layout, name)
        # One that was cut short would stay so, and be refused, with every build (ship.layout, check_sizes).
        if known.is_file() and known.stat().st_size == sizes[name]:
            os.link(known, _blob(part, name))
        else:
            _bring(_blob(store, name), _blob(part, name), name)

    return digest, _lay_out(layout, descriptor, manifest, put)


def adopt(made: Path, layout: Path) -> tuple[str, int]:
    """Turn what the exporter wrote into a layout that holds one image and nothing else; return digest and layer bytes.

    The exporter's folder keeps its blobs for the next build, which then writes only what changed; the layout gets
    hard links to those that its manifest names.
    """
    index = json.loads((made / "index.json").read_text())
    entry = index["manifests"][-1]
    digest = str(entry["digest"])
    manifest = json.loads(_blob(made, digest).read_bytes())
    size = _lay_out(layout, entry, manifest, lambda name, part: os.link(_blob(made, name), _blob(part, name)))
    wanted = {_blob(layout, name).name for name in _names(digest, manifest)}
    for blob in (made / "blobs" / "sha256").iterdir():
        if blob.name not in wanted:
            blob.unlink()
    write_text(made / "index.json", json.dumps({"schemaVersion": 2, "manifests": [_entry(entry)]}))
    return digest, size


def _names(digest: str, manifest: dict[str, Any]) -> list[str]:
    wanted = [digest, manifest["config"]["digest"], *(item["digest"] for item in manifest["layers"])]
    return list(dict.fromkeys(wanted))


def _entry(descriptor: dict[str, Any]) -> dict[str, Any]:
    """Return a descriptor for index.json: an exporter's annotations, times among them, are no part of the image."""
    return {key: descriptor[key] for key in ("mediaType", "digest", "size", "platform") if key in descriptor}


def _lay_out(
    layout: Path, descriptor: dict[str, Any], manifest: dict[str, Any], put: Callable[[str, Path], None]
) -> int:
    """Make the layout beside its place, with `put(digest, part)` for each blob, and rename it; return layer bytes."""
    part = layout.with_name(f".{layout.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    (part / "blobs" / "sha256").mkdir(parents=True)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(lambda name: put(name, part), _names(str(descriptor["digest"]), manifest)):
            pass
    write_text(part / "oci-layout", '{"imageLayoutVersion":"1.0.0"}')
    index = {"schemaVersion": 2, "manifests": [_entry(descriptor)]}
    write_text(part / "index.json", json.dumps(index, indent=1) + "\n")
    old = layout.with_name(f".{layout.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if layout.exists():
        layout.rename(old)
    part.rename(layout)
    shutil.rmtree(old, ignore_errors=True)
    return sum(int(item["size"]) for item in manifest["layers"])


def _bring(blob: Path, target: Path, digest: str) -> None:
    """Link a blob of the store, or copy it where it lies on another file system, and check it against its digest."""
    try:
        os.link(blob, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(blob, target)
    with target.open("rb") as stream:
        found = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
    if found != digest:
        raise LockstepError(
            f"the private engine's store has a damaged blob: {digest} is {found} by its content",
            where=str(blob),
            fix="run `make engine-clean` and build again, and look after the disk",
        )


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / Path(*digest.split(":", 1))
