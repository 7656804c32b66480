"""What surrounds the build: whole layouts only, secrets that leave no file, events that become sentences."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from lockstep import build, secrets
from lockstep.bake_progress import Follower
from lockstep.build import proxies
from lockstep.errors import LockstepError
from lockstep.layout_made import adopt


def _export(folder: Path, layers: list[bytes]) -> str:
    """Write what BuildKit's exporter writes: blobs, and an index whose last entry is the image just built."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def put(data: bytes) -> dict[str, object]:
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return {"digest": f"sha256:{name}", "size": len(data)}

    manifest = {"config": put(b"{}"), "layers": [put(data) for data in layers]}
    entry = put(json.dumps(manifest).encode())
    (folder / "index.json").write_text(json.dumps({"manifests": [entry | {"annotations": {"t": "latest"}}]}))
    return str(entry["digest"])


def test_a_layout_holds_one_image_and_the_pool_forgets_the_rest(tmp_path: Path) -> None:
    pool, layout = tmp_path / "pool", tmp_path / "image"
    _export(pool, [b"old layer", b"kept layer"])
    adopt(pool, layout)
    digest = _export(pool, [b"new layer", b"kept layer"])
    assert adopt(pool, layout) == (digest, len(b"new layer") + len(b"kept layer"))
    names = {path.name for path in (layout / "blobs" / "sha256").iterdir()}
    assert len(names) == 4
    assert hashlib.sha256(b"old layer").hexdigest() not in names
    assert names == {path.name for path in (pool / "blobs" / "sha256").iterdir()}
    assert not list(tmp_path.glob(".image*"))


def test_a_layout_with_a_missing_blob_does_not_replace_a_whole_one(tmp_path: Path) -> None:
    pool, layout = tmp_path / "pool", tmp_path / "image"
    good = _export(pool, [b"one"])
    adopt(pool, layout)
    _export(pool, [b"two"])
    (pool / "blobs" / "sha256" / hashlib.sha256(b"two").hexdigest()).unlink()
    with pytest.raises(FileNotFoundError):
        adopt(pool, layout)
    assert json.loads((layout / "index.json").read_text())["manifests"][0]["digest"] == good


def test_the_index_address_is_a_secret_that_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_INDEX_URL", "PIP_INDEX_URL", "NETRC", *secrets._CA_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://user:hunter2@index.invalid/simple")
    with secrets.build_secrets() as flags:
        (flag,) = flags
        path = Path(flag.removeprefix("id=index,src="))
        assert path.read_text() == "https://user:hunter2@index.invalid/simple"
        assert path.stat().st_mode & 0o077 == 0
        assert "hunter2" not in flag
    assert not path.exists()


def test_a_certificate_file_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent/ca.pem")
    with pytest.raises(LockstepError, match=r"SSL_CERT_FILE=/nonexistent/ca.pem: is not a file"):
        secrets.certificate_file()


def test_C6_proxies_are_predefined_arguments_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    assert list(proxies()) == ["HTTPS_PROXY=http://proxy.invalid:3128"]


def _feed(follower: Follower, *events: dict[str, object], indent: int | None) -> None:
    for event in events:
        for line in json.dumps(event, indent=indent).splitlines():
            follower.feed(f"{line}\n".encode())


@pytest.mark.parametrize("indent", [None, 2])
def test_progress_tells_cached_layers_from_built_ones(indent: int | None) -> None:
    follower = Follower(2)
    times = {"started": "2026-01-01T00:00:00.123456789Z", "completed": "2026-01-01T00:00:02.623456789Z"}
    _feed(
        follower,
        {"vertexes": [{"digest": "a", "name": "[amd64-vllm-torch 1/1] RUN x"} | times]},
        {"vertexes": [{"digest": "b", "name": "[amd64-vllm-g0 1/1] RUN y", "cached": True} | times]},
        {"vertexes": [{"digest": "c", "name": "exporting to oci image format"} | times]},
        {"vertexes": [{"digest": "d", "name": "[internal] load build context"} | times]},
        indent=indent,
    )
    steps = {step.name: step for step in follower.steps()}
    assert set(steps) == {"vllm-torch", "vllm-g0", "export"}
    assert steps["vllm-torch"].seconds == 2.5
    assert not steps["vllm-torch"].cached
    assert steps["vllm-g0"].cached


def test_a_failed_step_is_quoted() -> None:
    follower = Follower(1)
    _feed(
        follower,
        {"vertexes": [{"digest": "a", "name": "[amd64-x 1/1] RUN y", "error": "process did not complete"}]},
        {"logs": [{"vertex": "a", "data": "ZXJyb3I6IG5vIHN1Y2ggd2hlZWwK"}]},
        indent=2,
    )
    assert "error: no such wheel" in follower.failure()


def test_a_full_disk_is_said_before_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep import disk
    from lockstep.arch import Arch
    from lockstep.layers import Layer
    from lockstep.lock import LockedWheel

    layer = Layer("x", ("x",), (LockedWheel("x", "1", "x-1-py3-none-any.whl", "0" * 64, 10**9),))
    monkeypatch.setattr(disk, "free_bytes", lambda _: 1_000_000)
    with pytest.raises(LockstepError, match=r"building image none for x86_64 needs 7,600.0 MB of disk and 1.0 MB are"):
        build.require_room((layer,), "none", Arch.X86_64)


def test_an_engine_that_did_not_answer_in_time_is_asked_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def bake(words: list[str], _env: dict[str, str], layers: int) -> Follower:
        asked.append(words)
        if len(asked) == 1:
            raise LockstepError("ERROR: failed to solve: DeadlineExceeded: context deadline exceeded")
        return Follower(layers)

    monkeypatch.setattr(build, "_bake", bake)
    build._bake_again(["bake", "--no-cache", "smoke"], {"CACHE_FROM": ""}, 1)
    assert asked == [["bake", "--no-cache", "smoke"], ["bake", "smoke"]]
    asked.clear()
    build._bake_again(["bake", "--no-cache", "smoke"], {"CACHE_FROM": ""}, 1, anew=True)
    assert asked == [["bake", "--no-cache", "smoke"]] * 2, "a proof takes nothing of an earlier build"
