"""Which engine is chosen, and what is said where there is none. No engine is made or asked."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from lockstep import engine, engine_binfmt, engine_images, engine_private
from lockstep.arch import Arch
from lockstep.disk import require_disk
from lockstep.engine import Engine, ensure_engine
from lockstep.engine_images import register_layout
from lockstep.engine_private import EngineDir, daemon_json, engine_dir, recipe
from lockstep.errors import LockstepError

SERVER = {"ServerVersion": "28.1", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}
BUILDX = {"ClientInfo": {"Plugins": [{"Name": "buildx", "Version": "v0.20"}]}}
AWAY = {"ServerErrors": ["Cannot connect to the Docker daemon"]}


@pytest.fixture(autouse=True)
def _bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Docker in PATH, no variable set, not root, and a state folder of its own."""
    for name in ("DOCKER_HOST", "DOCKER_CONFIG", "BUILDER", "BUILDX_BUILDER", "BUILDX_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("LOCKSTEP_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def _docker(tmp_path: Path, answer: dict[str, object]) -> Path:
    """Put a docker into PATH whose `info` answers with `answer`."""
    program = tmp_path / "bin" / "docker"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_no_engine_and_no_root_is_one_clear_error() -> None:
    with pytest.raises(LockstepError) as fault:
        ensure_engine()
    assert "no docker program in PATH" in fault.value.what
    assert "this user is not root" in fault.value.what
    assert "DOCKER_HOST" in fault.value.fix
    assert "\n" not in str(fault.value)


def test_the_machines_docker_is_used_where_it_answers_and_has_buildx(tmp_path: Path) -> None:
    program = _docker(tmp_path, {**SERVER, **BUILDX})
    found = ensure_engine()
    assert (found.docker, found.private, found.containerd_store) == (program, False, True)
    assert found.docker_cmd("image", "ls") == [str(program), "image", "ls"]
    assert found.build_network == "default"
    assert found.bake_network("t") == []


def test_a_docker_without_buildx_is_not_used(tmp_path: Path) -> None:
    _docker(tmp_path, {**SERVER, "ClientInfo": {"Plugins": []}})
    with pytest.raises(LockstepError, match="has no buildx"):
        ensure_engine()


def test_a_docker_host_that_is_away_is_an_error_and_no_other_engine_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _docker(tmp_path, {**AWAY, **BUILDX})
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    monkeypatch.setattr(engine_private, "start", lambda *_: pytest.fail("an engine was made"))
    with pytest.raises(LockstepError) as fault:
        ensure_engine()
    assert fault.value.where == "DOCKER_HOST=tcp://192.0.2.1:2375"
    assert "Cannot connect" in fault.value.what


def test_a_builder_is_passed_on_and_needs_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _docker(tmp_path, {**AWAY, **BUILDX})
    monkeypatch.setenv("BUILDER", "cluster")
    found = ensure_engine()
    assert found.env["BUILDX_BUILDER"] == "cluster"
    assert not found.private


def test_root_on_debian_gets_the_private_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[EngineDir] = []
    monkeypatch.setattr(engine_private, "why_not_possible", lambda: "")
    monkeypatch.setattr(engine_private, "start", started.append)
    found = ensure_engine()
    where = engine_dir()
    assert started == [where]
    assert found.private
    assert found.env["DOCKER_HOST"] == f"unix://{where.socket}"
    assert found.env["DOCKER_CONFIG"] == str(where.config)
    assert found.env["PATH"].split(os.pathsep)[0] == str(where.bin)


def test_a_shell_that_names_the_private_engine_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine_dir().socket}")
    monkeypatch.setattr(engine_private, "why_not_possible", lambda: "")
    monkeypatch.setattr(engine_private, "start", lambda _: None)
    assert ensure_engine().private


def test_the_private_engine_gives_bake_the_hosts_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BUILD", tmp_path / "build")
    private = Engine(Path("/x/docker"), {}, private=True, containerd_store=True)
    option, path = private.bake_network("smoke-x86_64")
    assert option == "--file"
    assert json.loads(Path(path).read_text()) == {"services": {"smoke-x86_64": {"build": {"network": "host"}}}}


def test_the_build_cache_has_one_rule_that_spares_the_wheel_cache() -> None:
    settings = json.loads(daemon_json(60_000_000_000))
    assert settings["builder"]["gc"] == {"enabled": True, "policy": [{"keepStorage": "60000000000", "all": True}]}
    assert settings["bridge"] == "none"
    assert settings["iptables"] is False


def test_a_half_made_root_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    where = engine_dir()
    (where.path / "root.part" / "usr").mkdir(parents=True)
    monkeypatch.setattr(engine_private, "require_mmdebstrap", lambda _: None)
    monkeypatch.setattr(engine_private, "require_programs", lambda *_: None)
    half = where.path / "root.part"
    calls: list[str] = []

    def remove(argv: list[object], **_: object) -> str:
        calls.append("rm")
        assert argv[-1] == half
        (half / "usr").rmdir()
        half.rmdir()
        return ""

    def make(*words: object, **_: object) -> None:
        calls.append("mmdebstrap")
        assert half in words
        half.mkdir()  # fails where the half-made one is still there

    monkeypatch.setattr(engine_private, "run", remove)
    monkeypatch.setattr(engine_private, "mmdebstrap", make)
    engine_private.make_root(where)
    assert calls == ["rm", "mmdebstrap"]
    assert (where.root / ".lockstep-recipe").read_text() == recipe()
    engine_private.make_root(where)
    assert calls == ["rm", "mmdebstrap"]


def test_a_stale_socket_is_no_running_engine() -> None:
    where = engine_dir()
    where.socket.parent.mkdir(parents=True)
    where.socket.touch()
    assert not engine_private.answers(where)
    assert engine_private.running_pid(where) is None


def test_too_little_disk_is_said_with_both_figures(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match=r"the rl image needs [\d,.]+ MB .* MB are free"):
        require_disk(tmp_path / "not" / "yet", 10**18, "the rl image")
    require_disk(tmp_path, 1, "a byte")


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("smoke", "docker.io/library/smoke:latest"),
        ("lockstep/vllm", "docker.io/lockstep/vllm:latest"),
        ("lockstep/vllm:x86_64", "docker.io/lockstep/vllm:x86_64"),
        ("host:5000/a/b:1", "host:5000/a/b:1"),
        ("localhost/a", "localhost/a:latest"),
    ],
)
def test_names_are_stored_in_full(name: str, full: str) -> None:
    assert engine_images._full_name(name) == full


def _layout(folder: Path) -> Path:
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    manifest = {"config": {"digest": "sha256:c"}, "layers": [{"digest": "sha256:l"}]}
    (blobs / "m").write_text(json.dumps(manifest))
    (blobs / "c").write_text("{}")
    (blobs / "l").write_text("layer")
    (folder / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:m", "size": 1}]}))
    return folder


def test_another_engine_gets_a_stream_that_old_and_new_docker_load_read(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "docker"
    program.write_text(f"#!/bin/sh\n/bin/cat > {tmp_path}/taken\n")
    program.chmod(0o755)
    other = Engine(program, dict(os.environ), private=False, containerd_store=False)
    assert register_layout(other, _layout(tmp_path / "oci"), "lockstep/t:1") == "sha256:m"
    with tarfile.open(tmp_path / "taken") as archive:
        names = archive.getnames()
        legacy = archive.extractfile("manifest.json")
        index = archive.extractfile("index.json")
        assert legacy is not None
        assert index is not None
        assert json.loads(legacy.read()) == [
            {"Config": "blobs/sha256/c", "RepoTags": ["lockstep/t:1"], "Layers": ["blobs/sha256/l"]}
        ]
        annotations = json.loads(index.read())["manifests"][0]["annotations"]
        assert annotations == {"io.containerd.image.name": "docker.io/lockstep/t:1"}
    assert {"blobs/sha256/m", "blobs/sha256/c", "blobs/sha256/l", "oci-layout"} < set(names)


def test_an_engine_that_refuses_the_image_is_quoted(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "docker"
    program.write_text("#!/bin/sh\necho 'no space left on device' >&2\nexit 1\n")
    program.chmod(0o755)
    other = Engine(program, dict(os.environ), private=False, containerd_store=False)
    with pytest.raises(LockstepError, match="no space left on device"):
        register_layout(other, _layout(tmp_path / "oci"), "lockstep/t:1")


def test_a_folder_that_is_no_layout_is_named(tmp_path: Path) -> None:
    other = Engine(Path("/x/docker"), {}, private=False, containerd_store=False)
    with pytest.raises(LockstepError, match="not an OCI layout"):
        register_layout(other, tmp_path, "t")


def test_the_emulator_is_registered_for_elf_files_of_its_machine() -> None:
    line = engine_binfmt.registration(Arch.AARCH64, Path("/q")).decode()
    _, name, kind, offset, magic, mask, program, flags = line.split(":")
    assert (name, kind, offset, program, flags) == ("lockstep-aarch64", "M", "", "/q", "CF")
    magic_bytes = bytes.fromhex(magic.replace("\\x", ""))
    mask_bytes = bytes.fromhex(mask.replace("\\x", ""))
    assert len(magic_bytes) == len(mask_bytes) == 20
    # /bin/true of Debian arm64: ELF64, little-endian, a position-independent executable (3), machine 183.
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00"
    assert bytes(a & b for a, b in zip(head, mask_bytes, strict=True)) == bytes(
        a & b for a, b in zip(magic_bytes, mask_bytes, strict=True)
    )


def test_no_emulator_and_no_root_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_binfmt, "host_arch", lambda: Arch.X86_64)
    monkeypatch.setattr(engine_binfmt, "is_registered", lambda _: False)
    with pytest.raises(LockstepError, match="apt-get install qemu-user-static"):
        engine_binfmt.ensure_binfmt(Arch.AARCH64)
