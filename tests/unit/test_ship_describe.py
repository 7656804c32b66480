"""The SBOM is of what an image carries, and a part of an image is built again from its name alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.arch import Arch
from lockstep.build import Options
from lockstep.lock import Lock
from lockstep.matrix import Matrix, load
from lockstep.narrow import Narrowing, narrow
from lockstep.paths import ROOT
from lockstep.ship import attest, contents, describe, rebuild, sbom
from lockstep.ship.contents import Contents
from lockstep.ship.layout import Descriptor, Layout, OciImage

MATRIX = load()


@pytest.mark.parametrize(
    ("image", "without", "lacks", "holds"),
    [
        ("vllm", "", {"deep-ep"}, {"vllm", "torch"}),
        ("megatron", "", {"deep-ep"}, {"flash-attn"}),
        ("megatron", "flash-attn", {"deep-ep", "flash-attn"}, {"causal-conv1d"}),
        ("rl", "flash-attn", {"flash-attn"}, {"deep-ep"}),
    ],
)
def test_an_sbom_lists_what_the_image_carries(
    monkeypatch: pytest.MonkeyPatch, image: str, without: str, lacks: set[str], holds: set[str]
) -> None:
    matrix, name = narrow(MATRIX, image, Narrowing.parse(without=without))
    listed: set[str] = set()

    def make(_subject: object, locks: Sequence[Lock], *_rest: object) -> bytes:
        listed.update(wheel.name for lock in locks for wheel in lock.wheels)
        return b"{}"

    monkeypatch.setattr(sbom, "make", make)
    monkeypatch.setattr(sbom, "compare", lambda *_: [])
    monkeypatch.setattr(describe, "of_image", lambda built: built)
    monkeypatch.setattr(contents, "read", lambda _source: Contents([], [], [], []))
    built = OciImage(Layout(ROOT), Descriptor("", "sha256:0", 0), {})
    describe.bill(matrix, name, Arch.X86_64, built)
    assert listed & lacks == set()
    assert holds <= listed


def test_a_part_is_built_again_from_its_provenance(monkeypatch: pytest.MonkeyPatch) -> None:
    what = Narrowing(("vllm", "megatron"), ("flash-attn",))
    matrix, name = narrow(MATRIX, "rl", what)
    built = OciImage(Layout(ROOT), Descriptor("", "sha256:0", 0), {"layers": [], "config": {}})
    recipe = describe.recipe_of(matrix, name, Arch.X86_64, built)
    assert "images/rl/Dockerfile" in recipe.inputs
    assert {key for key in recipe.inputs if "lock" in key} == {
        "images/vllm/lock.x86_64.txt",
        "images/megatron/lock.x86_64.txt",
    }
    statement = json.loads(attest.provenance(recipe, "host/x", "sha256:0").body)
    asked: list[Any] = []

    def make_image(whole: Matrix, image: str, arch: Arch, _options: Options, part: Narrowing) -> Any:
        asked.extend((whole.images.keys() == MATRIX.images.keys(), image, arch, part))
        return type("Built", (), {"digest": "sha256:1"})

    monkeypatch.setattr(rebuild, "make_image", make_image)
    assert rebuild.rebuild(statement["predicate"]["buildDefinition"]) == "sha256:1"
    assert asked == [True, "rl", Arch.X86_64, what]
