"""`BACKENDS="a b"`: an image with some of its venvs, under a name of its own."""

from __future__ import annotations

import pytest

from lockstep.errors import LockstepError
from lockstep.matrix import load
from lockstep.narrow import Narrowing, narrow, with_narrowed
from lockstep.paths import ROOT
from lockstep.render import render, render_narrowed

MATRIX = load()


def test_some_backends_make_an_image_of_another_name_in_the_images_own_order() -> None:
    matrix, name = narrow(
        MATRIX,
        "rl",
        Narrowing(
            (
                "sglang",
                "vllm",
            )
        ),
    )
    assert name == "rl-vllm-sglang"
    assert matrix.images[name].backends == ["vllm", "sglang"]
    assert matrix.images[name].with_ == ["deep-ep"], "vllm offers it"
    assert matrix.images["rl"] == MATRIX.images["rl"]
    assert name not in MATRIX.images


def test_an_optional_package_goes_with_the_last_backend_that_offers_it() -> None:
    matrix, name = narrow(
        MATRIX,
        "rl",
        Narrowing(
            (
                "sglang",
                "trtllm",
            )
        ),
    )
    assert matrix.images[name].with_ == []


@pytest.mark.parametrize("backends", [[], ["vllm", "megatron", "sglang", "trtllm"]])
def test_all_backends_are_the_image_itself(backends: list[str]) -> None:
    assert narrow(MATRIX, "rl", Narrowing(tuple(backends))) == (MATRIX, "rl")


def test_a_backend_that_the_image_lacks_is_refused() -> None:
    with pytest.raises(LockstepError, match='image rl has no backend "smoke-a"'):
        narrow(MATRIX, "rl", Narrowing(("smoke-a",)))


@pytest.mark.parametrize("backends", [["vllm"], ["megatron", "sglang"], ["vllm", "megatron", "sglang"]])
def test_the_name_alone_tells_which_image_it_is(backends: list[str]) -> None:
    matrix, name = narrow(MATRIX, "rl", Narrowing(tuple(backends)))
    assert with_narrowed(MATRIX, name).images[name] == matrix.images[name]


@pytest.mark.parametrize("name", ["rl", "smoke", "rl-", "rl-nothing", "other"])
def test_other_names_add_no_image(name: str) -> None:
    assert with_narrowed(MATRIX, name) is MATRIX


def test_names_with_hyphens_are_told_apart() -> None:
    matrix, name = narrow(MATRIX, "smoke", Narrowing(("smoke-b",)))
    assert name == "smoke-smoke-b"
    assert with_narrowed(MATRIX, name).images == matrix.images


def test_what_is_rendered_for_it_lies_in_build_and_the_committed_files_stay() -> None:
    matrix, name = narrow(MATRIX, "smoke", Narrowing(("smoke-b",)))
    files = render_narrowed(matrix, name)
    folder = ROOT / "build" / "narrow" / name
    assert set(files) == {folder / "Dockerfile", folder / "bake.hcl"}
    assert f'dockerfile = "build/narrow/{name}/Dockerfile"' in files[folder / "bake.hcl"]
    assert "[smoke-b]" in files[folder / "Dockerfile"]
    assert "[smoke-a]" not in files[folder / "Dockerfile"]
    assert name not in render(MATRIX)[ROOT / "bake.hcl"]


def test_backends_are_read_with_commas_or_spaces() -> None:
    assert Narrowing.parse("vllm megatron,sglang") == Narrowing(("vllm", "megatron", "sglang"))
    assert not Narrowing.parse("", "")
