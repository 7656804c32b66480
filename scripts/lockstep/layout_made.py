"""From what BuildKit exported to a whole OCI layout, by hard links, under its final name only when it is complete.

A builder writes an OCI layout over its client into a pool that outlives the build, and is not sent what the pool holds.
Every byte would go through that connection, so where the engine's store lies on this machine, its blobs are linked
into the pool while BuildKit makes them (`Seeding`): containerd names a blob by its hash and never writes it again, and
a link keeps the bytes when the store lets go of them. The image could be left in the store alone instead, by BuildKit's
other exporter, but dockerd 26.1 then unpacks it, as large as the image is: 40 of 290 s of a vLLM build.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from lockstep.engine import Engine
from lockstep.engine_private import engine_dir
from lockstep.errors import LockstepError
from lockstep.files import write_text

_CONTENT = "containerd/daemon/io.containerd.content.v1.content"
_AT_ONCE = 2  # hashing 4 GB takes 3 s on one processor with SHA instructions; the disk is what more would wait for
_LOOK_SECONDS = 0.2  # a blob that is finished between two looks is sent by BuildKit, so nothing depends on this


def store_of(engine: Engine) -> Path | None:
    """Return the content store that a build writes to, as an OCI layout's folder; None where it is out of reach.

    Only the private engine's is known to be on this machine, and only without a builder of the user's own.
    """
    store = engine_dir().data / _CONTENT
    if not engine.private or engine.env.get("BUILDX_BUILDER") or not store.is_dir():
        return None
    return store


class Seeding:
    """While in its context, links what a store has or gets into the pool that an exporter is about to write.

    `names` are the blobs that came this way: nobody has hashed those since they were linked, so `adopt` does.
    Where the build fails they leave the pool again: most are other images', and a link keeps disk in use.
    """

    def __init__(self, store: Path | None, pool: Path) -> None:
        self._store = store / "blobs" / "sha256" if store else None
        self._pool = pool / "blobs" / "sha256"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._seen: set[str] = set()
        self.names: set[str] = set()

    def __enter__(self) -> Seeding:
        if self._store:
            self._pool.mkdir(parents=True, exist_ok=True)
            self._link()
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._store:
            self._done.set()
            self._thread.join()
        if kind:
            for name in self.names:
                (self._pool / name).unlink(missing_ok=True)

    def _watch(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            self._link()

    def _link(self) -> None:
        """Link what is new. What cannot be linked (another file system, a full disk) the exporter sends."""
        assert self._store
        try:
            found = set(os.listdir(self._store))  # noqa: PTH208 - names are all that is wanted, five times a second
        except OSError:
            return
        for name in found - self._seen:
            self._seen.add(name)
            try:
                os.link(self._store / name, self._pool / name)
            except OSError:
                continue
            self.names.add(name)


def adopt(pool: Path, layout: Path, unhashed: set[str] | None = None) -> tuple[str, int]:
    """Turn what the exporter wrote into a layout that holds one image and nothing else; return digest and layer bytes.

    The pool keeps the image's blobs for the next build, which then writes only what changed; the layout gets hard
    links to those that its manifest names. The layout of before stays until this one is whole.

    unhashed: names (hexadecimal SHA-256) of blobs that did not come through the exporter's client, which hashes.
    LockstepError where one is damaged, or any is too long or short: it leaves the pool, and the old layout stays.
    """
    index = json.loads((pool / "index.json").read_text())
    entry = index["manifests"][-1]
    digest = str(entry["digest"])
    manifest = json.loads(_blob(pool, digest).read_bytes())
    sizes = {item["digest"]: int(item["size"]) for item in (entry, manifest["config"], *manifest["layers"])}
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        hashed = {name: _blob(pool, name).name in (unhashed or set()) for name in sizes}
        for _ in workers.map(lambda name: _check(_blob(pool, name), sizes[name], whole=hashed[name]), sizes):
            pass
    part = layout.with_name(f".{layout.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    (part / "blobs" / "sha256").mkdir(parents=True)
    for name in sizes:
        os.link(_blob(pool, name), _blob(part, name))
    write_text(part / "oci-layout", '{"imageLayoutVersion":"1.0.0"}')
    index = {"schemaVersion": 2, "manifests": [_entry(entry)]}
    write_text(part / "index.json", json.dumps(index, indent=1) + "\n")
    old = layout.with_name(f".{layout.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if layout.exists():
        layout.rename(old)
    part.rename(layout)
    shutil.rmtree(old, ignore_errors=True)
    wanted = {_blob(layout, name).name for name in sizes}
    for blob in (pool / "blobs" / "sha256").iterdir():
        if blob.name not in wanted:
            blob.unlink()
    write_text(pool / "index.json", json.dumps(index))
    return digest, sum(int(item["size"]) for item in manifest["layers"])


def _entry(descriptor: dict[str, Any]) -> dict[str, Any]:
    """Return a descriptor for index.json: an exporter's annotations, times among them, are no part of the image."""
    return {key: descriptor[key] for key in ("mediaType", "digest", "size", "platform") if key in descriptor}


def _check(blob: Path, size: int, *, whole: bool) -> None:
    """Compare a blob's length, and its hash if `whole`, with what it must be; a damaged one leaves the pool."""
    found = blob.name
    if whole:
        with blob.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != blob.name or blob.stat().st_size != size:
        blob.unlink()
        raise LockstepError(
            f"blob sha256:{blob.name} of the image is damaged; it is removed",
            where=str(blob),
            fix="build again; if that says the same, run `make engine-clean` first, and look after the disk",
        )


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / Path(*digest.split(":", 1))
