"""A layout made of what an exporter wrote and what was linked from a store: whole and checked, or the one of before."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep import layout_made
from lockstep.engine import Engine
from lockstep.errors import LockstepError
from lockstep.layout_made import Seeding, adopt


class Exporter:
    """A stand-in for BuildKit: makes blobs in its store and, as buildx does, sends only what the pool lacks."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.pool = folder / "pool"
        (self.store / "blobs" / "sha256").mkdir(parents=True)
        self.sent: set[str] = set()

    def put(self, data: bytes) -> dict[str, Any]:
        name = hashlib.sha256(data).hexdigest()
        blob = self.store / "blobs" / "sha256" / name
        if not blob.exists():
            blob.write_bytes(data)
        return {"digest": f"sha256:{name}", "size": len(data)}

    def export(self, layers: list[bytes]) -> str:
        manifest: dict[str, Any] = {"config": self.put(b"{}"), "layers": [self.put(data) for data in layers]}
        entry = self.put(json.dumps(manifest).encode())
        time.sleep(3 * layout_made._LOOK_SECONDS)  # as the last of an export takes
        self.sent = set()
        for item in (entry, manifest["config"], *manifest["layers"]):
            name = item["digest"].partition(":")[2]
            target = self.pool / "blobs" / "sha256" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                self.sent.add(name)
                target.write_bytes((self.store / "blobs" / "sha256" / name).read_bytes())
        kind = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "platform": {"os": "linux"}}
        entry |= kind | {"annotations": {"org.opencontainers.image.created": "now"}}
        (self.pool / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:older"}, entry]}))
        return str(entry["digest"])

    def build(self, layers: list[bytes], layout: Path, *, near: bool = True) -> tuple[str, int]:
        with Seeding(self.store if near else None, self.pool) as seeding:
            self.export(layers)
        return adopt(self.pool, layout, seeding.names)


@pytest.fixture
def exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Exporter:
    monkeypatch.setattr(layout_made, "_LOOK_SECONDS", 0.02)
    return Exporter(tmp_path)


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _blobs(layout: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (layout / "blobs" / "sha256").iterdir()}


@pytest.mark.parametrize("near", [True, False])
def test_a_layout_is_what_its_manifest_names(tmp_path: Path, exporter: Exporter, near: bool) -> None:
    exporter.put(b"another image's layer")
    layout = tmp_path / "image"
    digest, size = exporter.build([b"one", b"two", b"one"], layout, near=near)
    assert size == 9
    assert len(_blobs(layout)) == 4
    assert all(name == _name(data) for name, data in _blobs(layout).items())
    (kept,) = json.loads((layout / "index.json").read_text())["manifests"]
    assert set(kept) == {"mediaType", "digest", "size", "platform"}
    assert kept["digest"] == digest
    assert set(_blobs(exporter.pool)) == set(_blobs(layout))  # no other image's
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_the_store_holds_is_linked_and_not_sent(tmp_path: Path, exporter: Exporter) -> None:
    exporter.put(b"of an earlier build")
    layout = tmp_path / "image"
    exporter.build([b"of an earlier build", b"new"], layout)
    assert exporter.sent == set()
    for data in (b"of an earlier build", b"new"):
        blob = layout / "blobs" / "sha256" / _name(data)
        assert blob.samefile(exporter.store / "blobs" / "sha256" / _name(data))
    exporter.build([b"of an earlier build", b"far"], tmp_path / "other", near=False)
    assert exporter.sent >= {_name(b"far")}


def test_a_layout_outlives_what_the_engine_collects(tmp_path: Path, exporter: Exporter) -> None:
    layout = tmp_path / "image"
    exporter.build([b"kept", b"old"], layout)
    for blob in (exporter.store / "blobs" / "sha256").iterdir():
        blob.unlink()
    assert b"kept" in _blobs(layout).values()
    exporter.build([b"kept", b"new"], layout)
    assert {b"kept", b"new"} < set(_blobs(layout).values())
    assert b"old" not in _blobs(layout).values()


def test_another_file_system_is_sent_the_blobs(
    tmp_path: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = os.link

    def refuse(source: Path, target: Path) -> None:
        if Path(source).is_relative_to(exporter.store):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        there(source, target)

    monkeypatch.setattr(os, "link", refuse)
    exporter.build([b"one"], tmp_path / "image")
    assert _name(b"one") in exporter.sent
    assert b"one" in _blobs(tmp_path / "image").values()


def test_a_damaged_blob_makes_no_layout_and_the_old_one_stays(tmp_path: Path, exporter: Exporter) -> None:
    layout = tmp_path / "image"
    digest, _ = exporter.build([b"one"], layout)
    (exporter.store / "blobs" / "sha256" / _name(b"two")).write_bytes(b"twx")
    with pytest.raises(LockstepError, match=f"sha256:{_name(b'two')} of the image is damaged"):
        exporter.build([b"two"], layout)
    assert json.loads((layout / "index.json").read_text())["manifests"][0]["digest"] == digest
    assert not (exporter.pool / "blobs" / "sha256" / _name(b"two")).exists()


def test_a_blob_that_was_cut_short_is_refused_once_and_then_taken_again(tmp_path: Path, exporter: Exporter) -> None:
    layout = tmp_path / "image"
    exporter.build([b"one"], layout)
    short = exporter.pool / "blobs" / "sha256" / _name(b"one")
    short.unlink()
    short.write_bytes(b"on")
    with pytest.raises(LockstepError, match="damaged; it is removed"):
        exporter.build([b"one"], layout)
    exporter.build([b"one"], layout)
    assert b"one" in _blobs(layout).values()


def test_a_failed_build_leaves_no_links(tmp_path: Path, exporter: Exporter) -> None:
    exporter.put(b"another image's layer")
    with pytest.raises(RuntimeError), Seeding(exporter.store, exporter.pool):
        raise RuntimeError
    assert _blobs(exporter.pool) == {}


def _engine(private: bool = True, **env: str) -> Engine:
    return Engine(Path("/bin/true"), env, private, private)


def test_only_the_private_engines_own_builder_is_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_STATE", str(tmp_path))
    assert layout_made.store_of(_engine()) is None
    store = tmp_path / "engine" / "docker" / layout_made._CONTENT
    store.mkdir(parents=True)
    assert layout_made.store_of(_engine()) == store
    assert layout_made.store_of(_engine(BUILDX_BUILDER="farm")) is None
    assert layout_made.store_of(_engine(private=False)) is None
