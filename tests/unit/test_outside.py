"""Compiled and mirrored wheels on their way into an image: rendered without them, and missed before a build starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import stored

import wheelkit
from lockkit import lock, locked
from lockstep import outside
from lockstep.arch import Arch
from lockstep.compile import store
from lockstep.errors import LockstepError
from lockstep.layers import Layer
from lockstep.lock import LockedWheel
from lockstep.matrix import Matrix, load
from lockstep.outside import STAGE_FOLDER, binding, require_wheels
from lockstep.paths import ROOT
from lockstep.render import render

MATRIX = load()
FLASH = LockedWheel("flash-attn", "2.8.1", "", "", 0, "compile", "torch-2.13")
UNKNOWN = LockedWheel("tensorrt-llm", "1.3.0rc21", "", "", 0, "mirror")
KNOWN = LockedWheel("tensorrt-llm", "1.3.0rc21", "t.whl", "ab" * 32, 5, "mirror")


def _layers(*wheels: LockedWheel) -> list[Layer]:
    return [Layer(f"a-{wheel.name}", ("a",), (wheel,)) for wheel in wheels]


def test_a_compiled_wheel_is_bound_by_its_key_which_differs_per_architecture() -> None:
    found = [binding(MATRIX, FLASH, arch) for arch in Arch]
    for item in found:
        key = item.line.removeprefix("store:")
        assert len(key) == 64
        assert (item.source, item.target) == (f"wheels/{key}", f"{STAGE_FOLDER}/{key}")
    assert found[0] != found[1]


def test_a_mirrored_wheel_is_bound_by_its_hash_and_an_unknown_one_not_at_all() -> None:
    item = binding(MATRIX, KNOWN, Arch.X86_64)
    assert (item.line, item.source) == (f"mirror:{'ab' * 32}", f"wheels/mirror/{'ab' * 32}")
    assert binding(MATRIX, UNKNOWN, Arch.X86_64) == outside.Binding("missing:tensorrt-llm==1.3.0rc21")


def test_the_trtllm_image_is_rendered_although_its_wheel_is_not_mirrored() -> None:
    text = render(MATRIX)[ROOT / "images" / "trtllm" / "Dockerfile"]
    assert text.count("\nmissing:tensorrt-llm==1.3.0rc21\n") == len(MATRIX.arches)
    assert "tensorrt-llm==1.3.0rc21 --hash" not in text


def test_only_stages_of_such_wheels_get_the_file_that_installs_them() -> None:
    for path, text in render(MATRIX).items():
        if path.name == "Dockerfile":
            for stage in text.split("\nFROM ")[1:]:
                others = any(line.startswith(("store:", "mirror:", "missing:")) for line in stage.splitlines())
                assert ("target=/lockstep/stored.py" in stage) == others, stage


def test_deep_ep_is_only_in_the_image_that_asks_for_it_and_in_two_venvs_of_it() -> None:
    files = render(MATRIX)
    for image in ("vllm", "megatron"):
        assert "deep-ep" not in files[ROOT / "images" / image / "Dockerfile"]
    rl = files[ROOT / "images" / "rl" / "Dockerfile"]
    assert rl.count("COPY --link --from=amd64-megatron-vllm-deep-ep") == 1


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that holds nothing."""
    monkeypatch.setattr(store.find, "__defaults__", (tmp_path,))
    return tmp_path


def test_every_missing_wheel_is_named_before_the_build_with_what_to_run(bare: Path) -> None:
    with pytest.raises(LockstepError) as caught:
        require_wheels(MATRIX, _layers(FLASH, UNKNOWN, locked("index")), Arch.X86_64, build=False)
    said = str(caught.value)
    assert "the wheel of flash-attn 2.8.1 for torch-2.13 on x86_64 is not built" in said
    assert "make wheels PACKAGE=flash-attn LINE=torch-2.13 ARCH=x86_64" in said
    assert "WHEELS=1" in said
    assert "the wheel of tensorrt-llm 1.3.0rc21 for x86_64 is not mirrored" in said
    assert "make mirror PACKAGE=tensorrt-llm ARCH=x86_64" in said


def test_with_wheels_what_the_store_lacks_is_built_once(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def note_down(matrix: Matrix, lacking: list[object]) -> None:
        built.extend(str(target) for target in lacking)

    monkeypatch.setattr(outside, "_compile", note_down)
    require_wheels(MATRIX, [*_layers(FLASH), *_layers(FLASH)], Arch.X86_64, build=True)
    assert built == ["flash-attn for torch-2.13 on x86_64"]


def test_nothing_is_compiled_for_an_image_that_cannot_be_built_anyway(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "_compile", lambda *_: pytest.fail("compiled for hours before the error"))
    with pytest.raises(LockstepError, match="is not mirrored"):
        require_wheels(MATRIX, _layers(FLASH, UNKNOWN), Arch.X86_64, build=True)


def test_an_image_of_index_wheels_alone_needs_nothing(bare: Path) -> None:
    require_wheels(MATRIX, _layers(*lock("a", locked("x")).wheels), Arch.X86_64, build=False)


def test_stored_names_a_compiled_wheel_by_its_file_and_a_mirrored_one_by_its_hash_too(tmp_path: Path) -> None:
    bound, kept = tmp_path / "bound", tmp_path / "kept"
    made = wheelkit.stand_in(bound / "key", "ext", "1.0+cu130", "py3-none-any")
    assert stored.requirement("store:key", bound, kept) == ([], f"ext @ {made.as_uri()}")
    other = wheelkit.stand_in(bound / "abc", "big", "1.0", "py3-none-any")
    assert stored.keep("abc", bound, kept)
    options, text = stored.requirement("mirror:abc", bound, kept)
    assert options == ["--require-hashes"]
    assert text == f"big @ {(kept / 'abc' / other.name).as_uri()} --hash=sha256:abc"


def test_a_stage_that_inherits_a_mirrored_wheel_does_not_copy_it_again(tmp_path: Path) -> None:
    bound, kept = tmp_path / "bound", tmp_path / "kept"
    wheelkit.stand_in(bound / "abc", "big", "1.0", "py3-none-any")
    assert stored.keep("abc", bound, kept)
    before = next((kept / "abc").iterdir()).stat()
    assert not stored.keep("abc", bound, kept)
    assert next((kept / "abc").iterdir()).stat().st_mtime_ns == before.st_mtime_ns


def test_a_missing_wheel_ends_the_stage_with_what_to_run() -> None:
    with pytest.raises(SystemExit, match=r"the wheel of big==1\.0 is not mirrored: run `make mirror`"):
        stored.requirement("missing:big==1.0")


def test_a_folder_that_holds_no_wheel_or_two_ends_the_stage(tmp_path: Path) -> None:
    (tmp_path / "key").mkdir()
    with pytest.raises(SystemExit, match="holds 0 wheels where one is wanted"):
        stored.requirement("store:key", tmp_path, tmp_path)
