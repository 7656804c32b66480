"""D10: caches that are dead are left out before a build, and never cost it the image."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import requests

import shipkit
from lockstep import build, cache_refs
from lockstep.bake_progress import Follower
from lockstep.errors import LockstepError
from lockstep.ship.layout import OCI_INDEX, OCI_MANIFEST
from shipkit import TestRegistry, needs_registry

CACHE = "application/vnd.buildkit.cacheconfig.v0"
LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"


def blob(folder: Path, data: bytes, media_type: str) -> dict[str, Any]:
    name = hashlib.sha256(data).hexdigest()
    path = folder / "blobs" / "sha256" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(data)}


def cache(folder: Path, form: str) -> list[dict[str, Any]]:
    """Write a local cache as BuildKit does, its content as an index (older) or as an image; return layer and config."""
    held, config = blob(folder, b"layer " + form.encode(), LAYER), blob(folder, b"{}", CACHE)
    body: dict[str, Any] = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [held, config]}
    if form == "image":
        body = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [held]}
    top = blob(folder, json.dumps(body).encode(), body["mediaType"])
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return [held, config]


def lose(folder: Path, item: dict[str, Any]) -> None:
    (folder / "blobs" / Path(*item["digest"].split(":"))).unlink()


@pytest.mark.parametrize("form", ["index", "image"])
def test_D10_a_local_cache_is_live_while_all_its_blobs_are_there(tmp_path: Path, form: str) -> None:
    entry = f"type=local,src={tmp_path}"
    parts = cache(tmp_path, form)
    assert cache_refs.judge(entry).state == "live"
    for part in parts:
        lose(tmp_path, part)
        assert cache_refs.judge(entry).state == "dead"


def test_D10_a_local_cache_that_is_not_there_or_damaged_is_dead(tmp_path: Path) -> None:
    entry = f"type=local,src={tmp_path}"
    assert cache_refs.judge(entry).why == f"there is no cache in {tmp_path}"
    (tmp_path / "index.json").write_text("{")
    assert cache_refs.judge(entry).why == f"the cache in {tmp_path} is damaged"


def test_D10_only_dead_ones_are_left_out_and_each_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache(tmp_path / "live", "image")
    live, dead, other = f"type=local,src={tmp_path}/live", f"type=local,src={tmp_path}/dead", "type=gha,scope=x"
    assert cache_refs.usable(f"{dead} {live}  {other}") == [live, other]
    said = capsys.readouterr().err
    assert f"the cache {dead} is left out: there is no cache in" in said
    assert live not in said


def test_no_cache_is_no_entry() -> None:
    assert cache_refs.usable("") == []


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("REGISTRY_AUTH_FILE", "REGISTRY_CA", "REGISTRY_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    with shipkit.registry(tmp_path / "registry") as running:
        yield running


def put(server: TestRegistry, folder: Path, form: str) -> None:
    """Put a local cache into the registry under team/cache:FORM, by the registry's own API."""
    import requests

    base = f"http://{server.host}/v2/team/cache"
    for item in cache(folder, form):
        data = (folder / "blobs" / Path(*item["digest"].split(":"))).read_bytes()
        where = requests.post(f"{base}/blobs/uploads/", timeout=10).headers["Location"]
        requests.put(where, params={"digest": item["digest"]}, data=data, timeout=10).raise_for_status()
    top = json.loads((folder / "index.json").read_text())["manifests"][0]
    body = (folder / "blobs" / Path(*top["digest"].split(":"))).read_bytes()
    headers = {"Content-Type": top["mediaType"]}
    requests.put(f"{base}/manifests/{form}", data=body, headers=headers, timeout=10).raise_for_status()


@needs_registry
@pytest.mark.parametrize("form", ["image", "index"])
def test_D10_a_cache_in_a_registry_is_dead_once_a_blob_is_gone(tmp_path: Path, server: TestRegistry, form: str) -> None:
    put(server, tmp_path / "cache", form)
    for entry in (f"type=registry,ref={server.host}/team/cache:{form}", f"{server.host}/team/cache:{form}"):
        assert cache_refs.judge(entry) == cache_refs.Verdict(entry, "live")
    name = hashlib.sha256(b"layer " + form.encode()).hexdigest()
    (data,) = (tmp_path / "registry").rglob(f"{name}/data")
    data.unlink()
    verdict = cache_refs.judge(entry)
    assert (verdict.state, verdict.why) == ("dead", "1 of its 3 blobs are no longer in the registry")


@needs_registry
def test_D10_a_reference_that_the_registry_lacks_is_dead(server: TestRegistry) -> None:
    verdict = cache_refs.judge(f"type=registry,ref={server.host}/team/cache:none")
    assert (verdict.state, verdict.why) == ("dead", "the registry has no such reference")


@needs_registry
def test_D10_dead_caches_are_removed_from_a_registry_and_images_never(tmp_path: Path, server: TestRegistry) -> None:
    from lockstep.ship import push
    from lockstep.ship.layout import Layout
    from lockstep.ship.refs import parse
    from lockstep.ship.registry import Registry

    ref = parse(f"{server.host}/team/cache")
    for form in ("image", "index"):
        put(server, tmp_path / form, form)
    shipkit.write_layout(tmp_path / "built", [b"an image"], compression="gzip")
    built = Layout(tmp_path / "built").image()
    push.push_by_digest([built], ref)
    push.push_index([built], ref.with_tag("built"))
    for digest in (hashlib.sha256(b"layer image").hexdigest(), built.layers[0].digest.removeprefix("sha256:")):
        (data,) = (tmp_path / "registry").rglob(f"{digest}/data")
        data.unlink()
    assert sorted(Registry(ref).tags()) == ["built", "image", "index"]
    looked = cache_refs.prune_registry(str(ref), dry_run=True)
    assert sorted(Registry(ref).tags()) == ["built", "image", "index"]
    assert cache_refs.prune_registry(str(ref)) == looked
    assert {item.entry.rpartition(":")[2]: item.state for item in looked} == {"image": "dead", "index": "live"}
    assert Registry(ref).manifest("image") is None
    assert sorted(Registry(ref).tags()) == ["built", "index"]
    assert cache_refs.prune_registry(str(ref.with_tag("built"))) == []


@needs_registry
def test_a_repository_that_is_not_there_has_no_tags(server: TestRegistry) -> None:
    assert cache_refs.prune_registry(f"{server.host}/team/none") == []


def test_D10_a_registry_that_does_not_answer_is_left_to_buildkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder may reach what this machine does not, and BuildKit only warns where it does not either."""
    monkeypatch.setenv("REGISTRY_INSECURE", "1")
    verdict = cache_refs.judge("type=registry,ref=127.0.0.1:9/cache:x")
    assert verdict.state == "unknown"
    assert cache_refs.usable("type=registry,ref=127.0.0.1:9/cache:x") == ["type=registry,ref=127.0.0.1:9/cache:x"]


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b'{"layers": [{}]}'])
def test_D10_an_answer_that_is_no_manifest_is_left_to_buildkit(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    from lockstep.ship import registry

    monkeypatch.setattr(registry.Registry, "manifest", lambda *_: registry.Manifest("sha256:0", OCI_MANIFEST, body))
    assert cache_refs.judge("type=registry,ref=127.0.0.1:1/cache:x").state == "unknown"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"layers": 3}', b'{"config": "x", "layers": []}'])
def test_D10_pruning_leaves_and_names_a_tag_that_is_no_manifest(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    from lockstep.ship import registry

    monkeypatch.setattr(registry.Registry, "manifest", lambda *_: registry.Manifest("sha256:0", OCI_MANIFEST, body))
    monkeypatch.setattr(registry.Registry, "tags", lambda _: ["main", "old"])
    monkeypatch.setattr(registry.Registry, "delete", lambda *_: pytest.fail("something was deleted"))
    assert [each.state for each in cache_refs.prune_registry("127.0.0.1:1/cache")] == ["unknown", "unknown"]


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b'{"tags": 3}'])
def test_D10_a_page_in_place_of_the_list_of_tags_is_said(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    from lockstep.ship import registry

    page = requests.Response()
    page.status_code, page._content = 200, body
    monkeypatch.setattr(registry.Registry, "_get", lambda *_: page)
    with pytest.raises(LockstepError, match="no list of tags"):
        cache_refs.prune_registry("127.0.0.1:1/cache")


def test_D10_a_malformed_reference_is_left_out() -> None:
    assert cache_refs.judge("type=registry,ref=Not/A Ref").state == "dead"
    assert cache_refs.judge("type=registry").state == "dead"


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        (
            "failed to copy: httpReadSeeker: failed open: unexpected status code https://h/v2/x/blobs/sha256:1: 404",
            True,
        ),
        ("failed to compute cache key: blob not found", True),
        ("could not fetch content descriptor sha256:1 (application/x) from remote: not found", True),
        ("failed to solve: content digest sha256:" + "a" * 64 + ": not found", True),
        ("process /bin/sh did not complete successfully: exit code: 1", False),
        ('failed to compute cache key: failed to calculate checksum of ref x: "/absent": not found', False),
    ],
)
def test_D10_a_lost_blob_is_told_from_a_failed_step(said: str, lost: bool) -> None:
    assert cache_refs.lost(said) is lost


def run_build(monkeypatch: pytest.MonkeyPatch, folder: Path, faults: list[str], cache_from: str) -> list[str]:
    """Run build() with a bake that fails with each of `faults` in turn; return the CACHE_FROM of each bake."""
    from lockkit import matrix
    from lockstep.arch import Arch
    from lockstep.engine import Engine

    seen = []

    def bake(_words: list[str], env: dict[str, str], layers: int) -> Follower:
        seen.append(env["CACHE_FROM"])
        if faults:
            raise LockstepError(faults.pop(0))
        return Follower(layers)

    monkeypatch.setattr(build, "_bake", bake)
    monkeypatch.setattr(build, "OCI", folder)
    monkeypatch.setattr(build, "_parts", lambda *_: {})
    monkeypatch.setattr(build, "_record", lambda *_: None)
    monkeypatch.setattr(build, "_builder", lambda _: {})
    monkeypatch.setattr(build, "adopt", lambda *_: ("sha256:0", 0))
    small = matrix("  a: {line: plain, requires: [p]}")
    engine = Engine(Path("/bin/true"), {}, False, False)
    build.build(small, "all", Arch.X86_64, (), engine, build.Options(cache_from=cache_from))
    return seen


def test_D10_a_cache_that_dies_during_the_build_costs_a_second_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache(tmp_path / "cache", "image")
    entry = f"type=local,src={tmp_path}/cache"
    lost = "failed to compute cache key: blob not found"
    assert run_build(monkeypatch, tmp_path, [lost], entry) == [entry, ""]
    with pytest.raises(LockstepError, match="exit code: 1"):
        run_build(monkeypatch, tmp_path, ["exit code: 1"], entry)
    with pytest.raises(LockstepError, match="blob not found"):
        run_build(monkeypatch, tmp_path, [lost], "")


def test_D10_dead_references_do_not_reach_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_build(monkeypatch, tmp_path, [], f"type=local,src={tmp_path}/none") == [""]


def test_D10_what_no_index_names_is_removed_from_a_local_cache(tmp_path: Path) -> None:
    cache(tmp_path, "index")
    kept = set((tmp_path / "blobs/sha256").iterdir())
    old, young = (tmp_path / "blobs/sha256" / (name * 64) for name in "ab")
    for path in (*kept, old, young):
        path.touch()
        os.utime(path, (1, 1))
    old.write_bytes(b"12345")
    os.utime(old, (1, 1))
    os.utime(young)
    assert cache_refs.prune_local(f"type=local,dest={tmp_path},mode=max") == 5
    assert set((tmp_path / "blobs/sha256").iterdir()) == {*kept, young}


@pytest.mark.parametrize("index", ["{", '{"manifests": [{}]}', None])
def test_D10_nothing_is_removed_where_the_index_cannot_be_read(tmp_path: Path, index: str | None) -> None:
    cache(tmp_path, "index")
    for path in (tmp_path / "blobs/sha256").iterdir():
        os.utime(path, (1, 1))
    (tmp_path / "index.json").unlink()
    if index is not None:
        (tmp_path / "index.json").write_text(index)
    before = set((tmp_path / "blobs/sha256").iterdir())
    assert cache_refs.prune_local(f"type=local,dest={tmp_path} type=registry,ref=h/x") == 0
    assert set((tmp_path / "blobs/sha256").iterdir()) == before
