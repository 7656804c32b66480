"""Mirrored wheels pushed to a registry and pulled from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shipkit
import wheelkit
from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.matrix import Matrix
from lockstep.mirror import oci, store


def mirrored(folder: Path) -> tuple[Matrix, store.MirroredWheel]:
    wheel = wheelkit.stand_in(folder / "made", "tensorrt-llm", "1.3.0rc21", "cp313-cp313-linux_x86_64")
    sha256 = wheelkit.digest(wheel)
    kept = folder / "mirror" / sha256 / wheel.name
    kept.parent.mkdir(parents=True)
    wheel.rename(kept)
    matrix = wheelkit.matrix(
        f"""
mirror:
  tensorrt-llm:
    version: "1.3.0rc21"
    why: a stand-in takes its place in this test
    wheels: {{x86_64: {{sha256: "{sha256}", filename: {kept.name}}}}}
"""
    )
    found = store.known(matrix, "tensorrt-llm", Arch.X86_64, folder / "mirror")
    assert found is not None
    return matrix, found


def test_the_artifact_is_the_same_each_time(tmp_path: Path) -> None:
    _, wheel = mirrored(tmp_path)
    for name in ("a", "b"):
        oci.write_layout(tmp_path / name, wheel)
    first, second = (json.loads((tmp_path / name / "index.json").read_text()) for name in ("a", "b"))
    assert first == second
    digest = first["manifests"][0]["digest"].split(":")[1]
    manifest = json.loads((tmp_path / "a/blobs/sha256" / digest).read_text())
    assert manifest["artifactType"] == oci.ARTIFACT_TYPE
    assert [layer["digest"] for layer in manifest["layers"]] == [f"sha256:{wheel.sha256}"]
    assert manifest["layers"][0]["annotations"] == {"org.opencontainers.image.title": wheel.filename}


@shipkit.needs_registry
def test_push_and_pull(tmp_path: Path) -> None:
    matrix, wheel = mirrored(tmp_path)
    with shipkit.registry(tmp_path / "registry") as registry:
        pushed = list(oci.push_all(matrix, f"{registry.host}/wheels/mirror", tmp_path / "mirror"))
        assert pushed == [f"{registry.host}/wheels/mirror:sha256-{wheel.sha256} {wheel.filename}"]
        before = len(registry.requests("PATCH")) + len(registry.requests("PUT"))
        list(oci.push_all(matrix, f"{registry.host}/wheels/mirror", tmp_path / "mirror"))
        uploads = [path for path in registry.requests("PATCH") if "uploads" in path]
        assert before > 0
        assert len(uploads) <= 2  # the wheel and the empty config, once: the second push sent neither
        elsewhere = tmp_path / "elsewhere"
        (elsewhere / ".pull-left").mkdir(parents=True)  # of a run that was killed
        assert len(list(oci.pull_all(matrix, f"{registry.host}/wheels/mirror", elsewhere))) == 1
        got = store.require(matrix, "tensorrt-llm", Arch.X86_64, elsewhere)
        assert got.path.read_bytes() == wheel.path.read_bytes()
        assert not list(elsewhere.glob(".pull-*"))
        assert list(oci.pull_all(matrix, f"{registry.host}/wheels/mirror", elsewhere)) == [f"{wheel.filename} is there"]
        with pytest.raises(LockstepError, match="skopeo"):
            list(oci.pull_all(matrix, f"{registry.host}/nothing/here", tmp_path / "third"))


def test_nothing_to_push_and_nothing_to_pull_are_said(tmp_path: Path) -> None:
    matrix = wheelkit.matrix(
        """
mirror:
  tensorrt-llm:
    version: "1.3.0rc21"
    why: a stand-in takes its place in this test
    wheels: {x86_64: {}}
"""
    )
    with pytest.raises(LockstepError, match="nothing to push"):
        list(oci.push_all(matrix, "registry.example/wheels", tmp_path))
    with pytest.raises(LockstepError, match="nothing to pull"):
        list(oci.pull_all(matrix, "registry.example/wheels", tmp_path))
