"""A part of an image is never tagged as if it were the whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.matrix import load
from lockstep.ship import refs
from lockstep.ship.layout import OCI_MANIFEST, Layout, OciImage, put_blob
from lockstep.ship.named import require_own_name, title_of

MATRIX = load()
PART = "rl-vllm-megatron-sglang-without-deep-ep-flash-attn"


def image(folder: Path, title: str, arch: Arch = Arch.X86_64) -> OciImage:
    labels = {"org.opencontainers.image.title": title} if title else None
    config = {"os": "linux", "architecture": arch.docker, "config": {"Labels": labels}}
    layout = Layout(folder)
    about = put_blob(layout, json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
    manifest = {"mediaType": OCI_MANIFEST, "config": about.to_json(), "layers": []}
    return OciImage(layout, put_blob(layout, json.dumps(manifest).encode(), OCI_MANIFEST), manifest)


@pytest.mark.parametrize(
    "ref",
    [
        f"host:5000/team/{PART}:latest",
        f"host:5000/team/rl:{PART}",
        "host:5000/team/rl:vllm-megatron-sglang-without-deep-ep-flash-attn",
        "host:5000/team/rl:1.2-vllm-megatron-sglang-without-deep-ep-flash-attn",
        "host:5000/team/rl",
    ],
)
def test_a_part_goes_where_the_reference_names_it_or_without_a_tag(tmp_path: Path, ref: str) -> None:
    require_own_name(MATRIX, [image(tmp_path, PART)], refs.parse(ref))


@pytest.mark.parametrize(
    "ref",
    [
        "host:5000/team/rl:latest",
        "host:5000/team/rl:without-deep-ep",
        "host:5000/team/rl-vllm-megatron-sglang:1",
        f"host:5000/{PART}/rl:1",
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_part_is_refused_a_tag_that_says_another_thing(tmp_path: Path, ref: str, known: bool) -> None:
    fewer = {name: item for name, item in MATRIX.images.items() if name != "rl"}
    matrix = MATRIX if known else MATRIX.model_copy(update={"images": fewer})
    with pytest.raises(LockstepError, match=f"{PART} is only a part of rl"):
        require_own_name(matrix, [image(tmp_path, PART)], refs.parse(ref))


def test_a_tag_says_it_in_words_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="only a part"):
        require_own_name(MATRIX, [image(tmp_path, "rl-vllm")], refs.parse("host:5000/rl:novllm"))


def test_fewer_backends_are_a_part_too(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="rl-vllm is only a part of rl"):
        require_own_name(MATRIX, [image(tmp_path, "rl-vllm")], refs.parse("host:5000/rl:1"))
    require_own_name(MATRIX, [image(tmp_path, "rl-vllm")], refs.parse("host:5000/rl:1-vllm"))


@pytest.mark.parametrize("title", ["rl", "smoke", "", "anything"])
def test_whole_images_and_those_of_others_go_anywhere(tmp_path: Path, title: str) -> None:
    require_own_name(MATRIX, [image(tmp_path, title)], refs.parse("host:5000/team/other:latest"))
    assert title_of(image(tmp_path, title)) == title


def test_architectures_under_one_tag_are_alike(tmp_path: Path) -> None:
    pair = [image(tmp_path, PART), image(tmp_path, "rl", Arch.AARCH64)]
    with pytest.raises(LockstepError, match="not the same part of one image"):
        require_own_name(MATRIX, pair, refs.parse(f"host:5000/{PART}:1"))
