"""bake.hcl is valid to buildx, for every image and group."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from lockstep.engine import Engine, ensure_engine
from lockstep.errors import LockstepError
from lockstep.matrix import load
from lockstep.paths import ROOT


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return ensure_engine()
    except LockstepError as error:
        pytest.skip(str(error))


def printed(engine: Engine, *targets: str, **variables: str) -> dict[str, dict[str, object]]:
    words = engine.docker_cmd("buildx", "bake", "--file", "bake.hcl", "--print", *targets)
    done = subprocess.run(words, env={**engine.env, **variables}, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, object]] = json.loads(done.stdout)["target"]
    return found


def test_every_image_of_the_matrix_is_a_valid_group(engine: Engine) -> None:
    matrix = load()
    for image in matrix.images:
        found = printed(engine, image)
        assert sorted(found) == sorted(f"{image}-{arch}" for arch in matrix.arches)
        for arch in matrix.targets():
            assert found[f"{image}-{arch}"]["platforms"] == [arch.platform]


def test_every_group_prints(engine: Engine) -> None:
    groups = re.findall(r'^group "([^"]+)"', (ROOT / "bake.hcl").read_text(), re.MULTILINE)
    assert groups
    for group in groups:
        assert printed(engine, group)


def test_D10_a_cache_that_cannot_be_written_is_declared_no_error(engine: Engine) -> None:
    image = next(iter(load().images))
    for target in printed(engine, image, CACHE_TO="type=registry,ref=127.0.0.1:9/x").values():
        assert "ignore-error=true" in json.dumps(target["cache-to"])


def test_B1_no_target_makes_attestations(engine: Engine) -> None:
    for image in load().images:
        for target in printed(engine, image).values():
            assert all("disabled" in str(each) for each in json.loads(json.dumps(target.get("attest", []))))
