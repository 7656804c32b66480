"""The private engine, made for real in a folder of its own: its life, its faults, and images named in it."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep import engine_private
from lockstep.arch import Arch, host_arch
from lockstep.engine import Engine, engine_status, private_engine
from lockstep.engine_images import register_layout
from lockstep.engine_private import EngineDir, engine_dir, running_pid
from lockstep.errors import LockstepError

pytestmark = pytest.mark.skipif(
    bool(engine_private.why_not_possible()), reason=f"no private engine here: {engine_private.why_not_possible()}"
)


@pytest.fixture(scope="module", autouse=True)
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineDir]:
    """Make and start an engine below a temporary state folder; remove it in the end."""
    kept = {name: os.environ.pop(name, None) for name in ("DOCKER_HOST", "BUILDER", "LOCKSTEP_STATE")}
    os.environ["LOCKSTEP_STATE"] = str(tmp_path_factory.mktemp("state"))
    made = engine_dir()
    try:
        engine_private.start(made)
        yield made
    finally:
        engine_private.clean(made)
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _docker(engine: Engine, *words: str) -> str:
    done = subprocess.run(engine.docker_cmd(*words), env=engine.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def layout(where: EngineDir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an image of one static program, zstd layers, as an OCI layout."""
    context = tmp_path_factory.mktemp("context")
    (context / "program").write_bytes((where.root / "usr/bin/tini-static").read_bytes())
    (context / "program").chmod(0o755)
    (context / "Dockerfile").write_text(
        'FROM scratch\nCOPY --link program /program\nENTRYPOINT ["/program", "--version"]\n'
    )
    output = context / "oci"
    export = f"type=oci,tar=false,dest={output},compression=zstd,force-compression=true"
    _docker(private_engine(where), "buildx", "build", "--provenance=false", "--output", export, str(context))
    return output


def test_the_engine_answers_and_says_what_it_is(where: EngineDir) -> None:
    status = engine_status()
    assert (status.running, status.containerd_store) == (True, True)
    assert status.buildx
    assert status.address == f"unix://{where.socket}"


def test_the_client_folder_holds_docker_and_nothing_else(where: EngineDir) -> None:
    assert [path.name for path in where.bin.iterdir()] == ["docker"]


def test_a_second_start_changes_nothing(where: EngineDir) -> None:
    before = running_pid(where)
    engine_private.start(where)
    assert running_pid(where) == before


def test_the_hosts_mounts_do_not_show_the_engine(where: EngineDir) -> None:
    assert str(where.path) not in Path("/proc/self/mountinfo").read_text()


def test_an_image_is_named_without_its_blobs_and_runs(where: EngineDir, layout: Path) -> None:
    engine = private_engine(where)
    digest = register_layout(engine, layout, "lockstep/tiny:1")
    assert digest == json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    assert _docker(engine, "image", "inspect", "--format", "{{.Id}}", "lockstep/tiny:1").strip() == digest
    restricted = ("--network", "none", "--read-only", "--user", "12345:12345", "--tmpfs", "/tmp")
    assert "tini version" in _docker(engine, "run", "--rm", *restricted, "lockstep/tiny:1")


def test_an_image_of_the_other_architecture_is_named_too(where: EngineDir, layout: Path, tmp_path: Path) -> None:
    """Containerd's import leaves out what is not of its own platform unless it is told to take all."""
    engine = private_engine(where)
    other = next(arch for arch in Arch if arch is not host_arch())
    export = f"type=oci,tar=false,dest={tmp_path / 'oci'},compression=zstd,force-compression=true"
    words = ("--provenance=false", "--platform", other.platform, "--output", export, str(layout.parent))
    _docker(engine, "buildx", "build", *words)
    digest = register_layout(engine, tmp_path / "oci", "lockstep/tiny:other")
    inspect = ("image", "inspect", "--format", "{{.Id}} {{.Architecture}}", "lockstep/tiny:other")
    assert _docker(engine, *inspect).split() == [digest, other.docker]


def test_an_image_outlives_the_build_cache(where: EngineDir, layout: Path) -> None:
    engine = private_engine(where)
    register_layout(engine, layout, "lockstep/tiny:1")
    _docker(engine, "builder", "prune", "--all", "--force")
    assert "tini version" in _docker(engine, "run", "--rm", "--network", "none", "lockstep/tiny:1")


def test_an_image_whose_blobs_the_store_lost_is_brought_whole(where: EngineDir, layout: Path) -> None:
    engine = private_engine(where)
    register_layout(engine, layout, "lockstep/tiny:1")
    _docker(engine, "image", "rm", "--force", "lockstep/tiny:1")
    _docker(engine, "builder", "prune", "--all", "--force")
    register_layout(engine, layout, "lockstep/tiny:1")
    assert "tini version" in _docker(engine, "run", "--rm", "--network", "none", "lockstep/tiny:1")


def _processes(where: EngineDir) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "root").samefile(where.root):
                found.append((process / "comm").read_text().strip())
        except OSError:
            continue
    return found


def test_a_killed_engine_leaves_no_process_and_starts_again(where: EngineDir, layout: Path) -> None:
    pid = running_pid(where)
    assert pid is not None
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    engine_private._gone(pid, 30)
    os.close(handle)
    assert where.socket.exists()  # stale
    assert not engine_private.answers(where)
    assert engine_status().running is False
    assert _processes(where) == []
    engine_private.start(where)
    assert running_pid(where) not in (None, pid)
    register_layout(private_engine(where), layout, "lockstep/tiny:2")
    assert "tini version" in _docker(private_engine(where), "run", "--rm", "--network", "none", "lockstep/tiny:2")


def test_stop_ends_it_and_two_starts_at_once_make_one_engine(where: EngineDir) -> None:
    assert engine_private.stop(where) is True
    assert (running_pid(where), where.socket.exists(), _processes(where)) == (None, False, [])
    assert engine_private.stop(where) is False
    program = "from lockstep.engine import ensure_engine; ensure_engine()"
    bare = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

    def start(_: int) -> int:
        return subprocess.run([sys.executable, "-c", program], env=bare, check=False).returncode

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(start, range(2))) == [0, 0]
    assert sum(name == "dockerd" for name in _processes(where)) == 1


def test_a_daemon_that_cannot_start_is_quoted(where: EngineDir) -> None:
    engine_private.stop(where)
    config = where.root / "etc/docker/daemon.json"
    original = engine_private.daemon_json
    try:
        engine_private.daemon_json = lambda _: '{"no-such-setting": 1}'  # type: ignore[assignment]
        with pytest.raises(LockstepError, match="no-such-setting"):
            engine_private.start(where)
    finally:
        engine_private.daemon_json = original
    engine_private.start(where)
    assert "no-such-setting" not in config.read_text()
