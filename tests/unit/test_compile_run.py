"""How a build is started and what is made of what it prints, with a program in docker's place."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import auditkit
import wheelkit
from lockstep.arch import Arch, host_arch
from lockstep.compile import environment, job, run, sources, store
from lockstep.compile.environment import Target
from lockstep.compile.spec import CacheKey
from lockstep.engine import Engine
from lockstep.errors import LockstepError
from lockstep.lock import Lock, LockedWheel
from lockstep.matrix import Matrix
from lockstep.paths import ROOT

DOCKER = """#!/bin/sh
printf '%s\\n' "$@" > "$FAKE/words"
echo '#1 [internal] load build definition' >&2
echo '#7 1.234 lockstep| plan: 3 files' >&2
{lines}
out=; for word in "$@"; do case "$word" in type=local,dest=*) out=${{word#type=local,dest=}};; esac; done
mkdir -p "$out" && cp "$FAKE"/*.whl "$FAKE/result.json" "$out"
exit {code}
"""
PARTS = """
compile:
  some-thing:
    version: "1.0"
    why: a stand-in that the test builds
    source: {sdist_sha256: "0000000000000000000000000000000000000000000000000000000000000000"}
    cuda: null
    requires: [idna]
    imports: [some_thing]
"""
TARGET = Target("some-thing", "plain", host_arch())


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    """Stand in for the locks, the base and the source, which other tests make for real."""
    key = CacheKey(
        package="some-thing", version="1.0", source="sdist:" + "0" * 64, directory="", line="plain", torch="", cuda="",
        cuda_arches=[], gencode="check", arch=host_arch().value, python="3.13", compiler="g++ 14", base="b",
        requirements="r", environment={}, epoch=1767225600, build_script=job.script_hash(),
    )  # fmt: skip
    wheel = LockedWheel("idna", "3.10", "idna-3.10-py3-none-any.whl", "a" * 64, 1)
    lock = Lock("compile-some-thing", host_arch(), "x", (wheel,))
    monkeypatch.setattr(run, "key_of", lambda *_: key)
    monkeypatch.setattr(environment, "read", lambda *_: lock)
    monkeypatch.setattr(run, "make_base", lambda *_: ROOT / "build/base/k/rootfs.tar")
    monkeypatch.setattr(run, "BUILD", ROOT / "build" / f"test-{os.getpid()}")
    monkeypatch.setattr(sources, "fetch", lambda *_: sources.Source("sdist:0", tmp_path, "some_thing-1.0.tar.gz"))
    monkeypatch.setattr(store.find, "__defaults__", (tmp_path / "wheels",))
    monkeypatch.setattr(store.enter, "__defaults__", (tmp_path / "wheels",))
    monkeypatch.setenv("FAKE", str(tmp_path))
    return wheelkit.matrix(PARTS)


@pytest.fixture(autouse=True)
def _clean() -> object:
    yield
    import shutil

    shutil.rmtree(ROOT / "build" / f"test-{os.getpid()}", ignore_errors=True)


def engine(folder: Path, lines: str = "", code: int = 0, *, private: bool = True) -> Engine:
    program = folder / "docker"
    program.write_text(DOCKER.format(lines=lines, code=code))
    program.chmod(0o755)
    auditkit.wheel(folder, "some-thing", "1.0", {"some_thing.py": b""}, ["idna"])
    (folder / "result.json").write_text(json.dumps({"seconds": 1.0}))
    return Engine(program, dict(os.environ), private=private, containerd_store=True)


def words(folder: Path) -> list[str]:
    return (folder / "words").read_text().splitlines()


def test_a_build_is_without_network_and_lands_in_the_store(
    tmp_path: Path, matrix: Matrix, capsys: pytest.CaptureFixture[str]
) -> None:
    built = run.build(matrix, TARGET, engine(tmp_path), run.Options(cgroup_parent="/limited"))
    assert not built.cached
    assert built.stored.path.is_relative_to(tmp_path / "wheels" / built.stored.key)
    assert run.result_of(built.stored) == {"seconds": 1.0}
    said = words(tmp_path)
    assert said[said.index("--cgroup-parent") + 1] == "/limited"
    assert [said[at + 1] for at, word in enumerate(said) if word == "--allow"] == ["network.host"]
    assert "--no-cache-filter" not in said
    text = Path(said[said.index("--file") + 1]).read_text()
    assert "RUN --network=none --mount=type=bind,from=job" in text
    assert f"idna==3.10 --hash=sha256:{'a' * 64}" in text
    assert "  plan: 3 files" in capsys.readouterr().err
    again = run.build(matrix, TARGET, engine(tmp_path, "exit 9"), run.Options())
    assert again.cached
    assert again.stored == built.stored


def test_a_cold_build_uses_no_cache(tmp_path: Path, matrix: Matrix) -> None:
    run.build(matrix, TARGET, engine(tmp_path), run.Options())
    cold = run.build(matrix, TARGET, engine(tmp_path), run.Options(cold=True))
    said = words(tmp_path)
    assert said[said.index("--no-cache-filter") + 1] == "compile"
    settings = next(word for word in said if word.startswith("job=")).removeprefix("job=")
    assert json.loads((Path(settings) / "job.json").read_text())["ccache_dir"] is None
    assert cold.book is not None
    assert cold.book.equal is True


def test_the_drivers_own_sentence_is_the_error(tmp_path: Path, matrix: Matrix) -> None:
    line = "echo '#7 2.5 lockstep! the kernel killed a compiler -> lower max_jobs' >&2; exit 1"
    with pytest.raises(LockstepError) as caught:
        run.build(matrix, TARGET, engine(tmp_path, line), run.Options())
    assert (caught.value.what, caught.value.fix) == ("the kernel killed a compiler", "lower max_jobs")
    assert caught.value.where.endswith("log.txt")
    assert not list((tmp_path / "wheels").glob("*/*.whl"))


def test_F1_a_driver_that_was_killed_itself_is_called_that(tmp_path: Path, matrix: Matrix) -> None:
    line = "echo 'ERROR: process \"/bin/sh -c python3.13\" did not complete successfully: exit code: 137' >&2; exit 1"
    with pytest.raises(LockstepError, match="killed the build of some-thing, most likely for lack of memory"):
        run.build(matrix, TARGET, engine(tmp_path, line), run.Options())


def test_a_wheel_that_requires_something_else_than_declared_is_refused(tmp_path: Path, matrix: Matrix) -> None:
    made = engine(tmp_path)
    auditkit.wheel(tmp_path, "some-thing", "1.0", {"some_thing.py": b""}, ["idna", "numpy<2"])
    with pytest.raises(LockstepError, match="requires numpy<2") as caught:
        run.build(matrix, TARGET, made, run.Options())
    assert caught.value.where == "versions.yaml compile.some-thing.requires"


def test_another_architecture_wants_a_builder_of_its_own(tmp_path: Path, matrix: Matrix) -> None:
    other = next(arch for arch in Arch if arch is not host_arch())
    faults: list[LockstepError] = []
    target = Target("some-thing", "plain", other)
    assert not run.prepared(matrix, target, engine(tmp_path), run.Options(), faults)
    assert "has to be compiled on" in faults[0].what
    assert "BUILDER=" in faults[0].fix
    run.require_native(target, engine(tmp_path, private=False))


def test_files_that_change_while_the_base_is_made_stop_the_build(
    tmp_path: Path, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "script_hash", lambda: "another")
    with pytest.raises(LockstepError, match="changed meanwhile"):
        run.build(matrix, TARGET, engine(tmp_path), run.Options())
