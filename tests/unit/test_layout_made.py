"""A layout made of a store's blobs: whole and checked, or the one of before."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from lockstep import build, layout_made
from lockstep.arch import Arch
from lockstep.bake_progress import Follower
from lockstep.engine import Engine
from lockstep.errors import LockstepError
from lockstep.layout_made import link


def _store(folder: Path, layers: list[bytes]) -> dict[str, Any]:
    """Write blobs as containerd keeps them; return the descriptor that BuildKit reports."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def put(data: bytes) -> dict[str, object]:
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).unlink(missing_ok=True)
        (blobs / name).write_bytes(data)
        return {"digest": f"sha256:{name}", "size": len(data)}

    manifest = {"config": put(b"{}"), "layers": [put(data) for data in layers]}
    entry = put(json.dumps(manifest).encode())
    more = {"annotations": {"org.opencontainers.image.created": "now"}, "platform": {"os": "linux"}}
    return entry | {"mediaType": "application/vnd.oci.image.manifest.v1+json"} | more


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _blobs(layout: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (layout / "blobs" / "sha256").iterdir()}


def test_a_layout_is_links_to_what_its_manifest_names(tmp_path: Path) -> None:
    store, layout = tmp_path / "store", tmp_path / "image"
    _store(store, [b"another image's layer"])
    entry = _store(store, [b"one", b"two", b"one"])
    assert link(store, entry, layout) == (entry["digest"], 9)
    names = set(_blobs(layout))
    assert len(names) == 4
    assert all(name == _name(data) for name, data in _blobs(layout).items())
    assert (layout / "blobs" / "sha256" / _name(b"one")).samefile(store / "blobs" / "sha256" / _name(b"one"))
    (kept,) = json.loads((layout / "index.json").read_text())["manifests"]
    assert kept == {key: entry[key] for key in ("mediaType", "digest", "size", "platform")}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_layout_outlives_what_the_engine_collects(tmp_path: Path) -> None:
    store, layout = tmp_path / "store", tmp_path / "image"
    link(store, _store(store, [b"kept", b"old"]), layout)
    for blob in (store / "blobs" / "sha256").iterdir():
        blob.unlink()
    assert b"kept" in _blobs(layout).values()
    entry = _store(store, [b"kept", b"new"])
    (store / "blobs" / "sha256" / _name(b"kept")).unlink()
    link(store, entry, layout)
    assert {b"kept", b"new"} < set(_blobs(layout).values())
    assert b"old" not in _blobs(layout).values()


def test_a_blob_that_was_cut_short_is_taken_from_the_store_again(tmp_path: Path) -> None:
    store, layout = tmp_path / "store", tmp_path / "image"
    entry = _store(store, [b"one"])
    link(store, entry, layout)
    short = layout / "blobs" / "sha256" / _name(b"one")
    short.unlink()
    short.write_bytes(b"on")
    link(store, entry, layout)
    assert b"one" in _blobs(layout).values()


def _on_another_file_system(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    """Refuse hard links out of the store, as the kernel does between two file systems."""
    there = os.link

    def refuse(source: Path, target: Path) -> None:
        if source.is_relative_to(store):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        there(source, target)

    monkeypatch.setattr(os, "link", refuse)


def test_another_file_system_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, layout = tmp_path / "store", tmp_path / "image"
    _on_another_file_system(monkeypatch, store)
    link(store, _store(store, [b"one"]), layout)
    assert not (layout / "blobs" / "sha256" / _name(b"one")).samefile(store / "blobs" / "sha256" / _name(b"one"))
    assert b"one" in _blobs(layout).values()


@pytest.mark.parametrize("copied", [False, True])
def test_a_damaged_blob_makes_no_layout_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    store, layout = tmp_path / "store", tmp_path / "image"
    good = _store(store, [b"one"])
    link(store, good, layout)
    entry = _store(store, [b"two"])
    (store / "blobs" / "sha256" / _name(b"two")).write_bytes(b"twx")
    if copied:
        _on_another_file_system(monkeypatch, store)
    with pytest.raises(LockstepError, match=f"damaged blob: sha256:{_name(b'two')}"):
        link(store, entry, layout)
    assert json.loads((layout / "index.json").read_text())["manifests"][0]["digest"] == good["digest"]


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


@pytest.mark.parametrize("held", [True, False])
def test_what_the_store_does_not_hold_is_fetched_through_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    from lockkit import matrix

    store, oci = tmp_path / "store", tmp_path / "oci"
    entry = _store(store, [b"one"])
    outputs = []

    def bake(words: list[str], _env: dict[str, str], layers: int) -> Follower:
        output = next(word for word in words if ".output=" in word).partition("=")[2]
        outputs.append(("--no-cache" in words, output))
        if output.startswith("type=image"):
            described = Path(words[words.index("--metadata-file") + 1])
            described.parent.mkdir(parents=True, exist_ok=True)
            described.write_text(json.dumps({"all-x86_64": {"containerimage.descriptor": entry}}))
            if not held:
                (store / "blobs" / "sha256" / _name(b"one")).unlink()
        else:
            made = Path(output.partition("dest=")[2].partition(",")[0])
            _store(made, [b"one"])
            (made / "index.json").write_text(json.dumps({"manifests": [entry]}))
        return Follower(layers)

    monkeypatch.setattr(build, "_bake", bake)
    monkeypatch.setattr(build, "OCI", oci)
    monkeypatch.setattr(build, "BUILD", tmp_path)
    monkeypatch.setattr(build, "store_of", lambda _: store)
    monkeypatch.setattr(build, "_parts", lambda *_: {})
    monkeypatch.setattr(build, "_record", lambda *_: None)
    monkeypatch.setattr(build, "_builder", lambda _: {})
    small = matrix("  a: {line: plain, requires: [p]}")
    built = build.build(small, "all", Arch.X86_64, (), _engine(False), build.Options(no_cache=True))
    assert built.digest == entry["digest"]
    assert b"one" in _blobs(oci / "all.x86_64").values()
    assert [no_cache for no_cache, _ in outputs] == ([True] if held else [True, False])
    assert outputs[-1][1].startswith("type=image" if held else "type=oci")
    assert (oci / ".pool" / "all-x86_64").exists() is not held
    forms = {output.partition("oci-mediatypes=")[2] for _, output in outputs}
    assert len(forms) == 1
