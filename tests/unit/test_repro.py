"""What `make repro` varies, and the checkout that each of its builds gets."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep import repro
from lockstep.arch import Arch
from lockstep.errors import LockstepError


def test_neighbours_differ_in_all_that_can_be_varied() -> None:
    found = repro.variations(10, load=2, cores=4, root=True)
    for one, two in itertools.pairwise(found):
        for name in ("hostname", "locale", "zone", "umask", "cpus", "load", "owner", "folder", "seed"):
            assert getattr(one, name) != getattr(two, name), name
    assert found == repro.variations(10, load=2, cores=4, root=True)


def test_one_build_is_no_proof() -> None:
    with pytest.raises(LockstepError, match="say 2 or more"):
        repro.prove("smoke", Arch.X86_64, 1)


def test_a_checkout_has_what_a_build_reads_and_modes_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    for name in (
        "versions.yaml",
        "docker/build/install.py",
        "docker/image/entrypoint",
        "build/big",
        ".venv/x",
        ".git/y",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "docker/image/entrypoint").chmod(0o755)
    (root / "wheels").mkdir()
    (root / "wheels" / "w.whl").write_text("kept where it is")
    monkeypatch.setattr(repro, "ROOT", root)
    repro.snapshot(tmp_path / "source")
    (root / "versions.yaml").write_text("edited while the proof runs")
    (variation,) = repro.variations(1, load=0, cores=1, root=False)
    narrow = repro.Variation(**{**variation.__dict__, "umask": 0o077})
    old = os.umask(0o077)
    try:
        repro.copy_checkout(tmp_path / "copy", narrow, tmp_path / "source")
    finally:
        os.umask(old)
    copied = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert copied == {"versions.yaml", "docker/build/install.py", "docker/image/entrypoint", "wheels/w.whl"}
    assert (tmp_path / "copy/versions.yaml").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "copy/docker/image/entrypoint").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "copy/versions.yaml").stat().st_mtime < time.time() - 1
    assert (tmp_path / "copy/versions.yaml").read_text() == "versions.yaml"
    assert (tmp_path / "copy/wheels/w.whl").samefile(root / "wheels/w.whl")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor cannot be halved")
def test_processors_are_taken_from_a_whole_family_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE) as process:
        while len(family := repro._family(process.pid)) < 2:
            assert process.poll() is None
        monkeypatch.setattr(repro, "running_pid", lambda where: process.pid)
        before = os.sched_getaffinity(process.pid)
        with repro._fewer_cpus(1):
            assert {len(os.sched_getaffinity(pid)) for pid in family} == {1}
        assert all(os.sched_getaffinity(pid) == before for pid in family)
        process.communicate(b"\n")
