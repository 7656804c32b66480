"""`BACKENDS="a b"` and `WITHOUT="x y"`: a part of an image, under a name of its own."""

from __future__ import annotations

import datetime
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.arch import Arch
from lockstep.audit.matrix import left_out_of, wanted_of
from lockstep.audit.metadata import Installed, check_metadata
from lockstep.audit.waivers import AuditRules, Expected, apply_rules
from lockstep.cli.options import chosen_image
from lockstep.errors import LockstepError
from lockstep.explain import explain
from lockstep.lock import carried, read_lock
from lockstep.matrix import Narrowed, load
from lockstep.narrow import (
    Narrowing,
    blamed,
    left_out_module,
    narrow,
    removable,
    split_name,
    told,
    with_narrowed,
)
from lockstep.paths import ROOT
from lockstep.render import render, render_narrowed
from lockstep.ship import refs
from lockstep.ship.attest import Recipe, provenance
from lockstep.ship.layout import OCI_MANIFEST, Layout, put_blob
from lockstep.ship.slurm import job_text

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


def test_a_compiled_wheel_is_left_out_and_the_name_says_so() -> None:
    matrix, name = narrow(MATRIX, "megatron", Narrowing.parse(without="flash_attn"))
    assert name == "megatron-without-flash-attn"
    assert matrix.images[name].description == "Megatron on torch 2.13; without flash-attn"
    assert matrix.images["megatron"] == MATRIX.images["megatron"]
    for arch in matrix.targets():
        lock = read_lock("megatron", arch)
        gone = {wheel.name for wheel in lock.wheels} - {wheel.name for wheel in carried(matrix, name, lock).wheels}
        assert gone == {"flash-attn", "deep-ep"}, "deep-ep is in images that say `with`"


def test_fewer_backends_and_fewer_packages_together() -> None:
    what = Narrowing.parse("sglang vllm megatron", "flash-attn,deep-ep")
    matrix, name = narrow(MATRIX, "rl", what)
    assert name == "rl-vllm-megatron-sglang-without-deep-ep-flash-attn"
    image = matrix.images[name]
    assert isinstance(image, Narrowed)
    assert (image.of, image.backends, image.with_) == ("rl", ["vllm", "megatron", "sglang"], [])
    assert image.description.endswith("; only vllm, megatron, sglang; without deep-ep, flash-attn")
    assert with_narrowed(MATRIX, name).images[name] == image
    assert split_name(MATRIX, name) == ("rl", Narrowing(("vllm", "megatron", "sglang"), ("deep-ep", "flash-attn")))
    assert told(matrix, name) == {
        "part": {"of": "rl", "without_backends": ["trtllm"], "without": ["deep-ep", "flash-attn"]}
    }
    assert told(matrix, "rl") == {}


def test_all_backends_by_name_change_nothing_of_the_name() -> None:
    every = tuple(MATRIX.images["rl"].backends)
    assert narrow(MATRIX, "rl", Narrowing(every, ("deep-ep",)))[1] == "rl-without-deep-ep"


@pytest.mark.parametrize(
    ("image", "backends", "package", "fault", "fix"),
    [
        ("megatron", (), "numpy", "not compiled", "name some of antlr4-python3-runtime, causal-conv1d, flash-attn"),
        ("megatron", (), "deep-ep", "it is not in megatron", "transformer-engine-torch"),
        ("vllm", (), "deep-ep", "it is not in vllm", "leave WITHOUT= away: vllm compiles nothing"),
        ("rl", ("sglang",), "deep-ep", "it is not in rl with sglang", "leave WITHOUT= away"),
        ("rl", ("vllm",), "flash-attn", "it is not in rl with vllm", "name some of deep-ep"),
        ("trtllm", (), "tensorrt-llm", "not compiled", "name some of antlr4-python3-runtime, llist"),
    ],
)
def test_only_compiled_packages_of_the_image_can_be_left_out(
    image: str, backends: tuple[str, ...], package: str, fault: str, fix: str
) -> None:
    with pytest.raises(LockstepError) as caught:
        narrow(MATRIX, image, Narrowing(backends, (package,)))
    text = str(caught.value)
    assert text.startswith(f"WITHOUT: {package} cannot be left out of {image}")
    assert fault in text
    assert fix in text


def test_what_may_be_left_out_is_what_the_locks_hold() -> None:
    for image, whole in MATRIX.images.items():
        locked = {
            wheel.name
            for name in whole.backends
            for arch in MATRIX.targets()
            for wheel in carried(MATRIX, image, read_lock(name, arch)).wheels
            if wheel.origin == "compile"
        }
        assert removable(MATRIX, image, whole.backends) == sorted(locked)


def test_every_part_is_read_back_from_its_name() -> None:
    for image, whole in MATRIX.images.items():
        for count in range(1, len(whole.backends) + 1):
            for kept in itertools.combinations(whole.backends, count):
                packages = removable(MATRIX, image, list(kept))
                for number in range(3):
                    for without in itertools.combinations(packages, number):
                        matrix, name = narrow(MATRIX, image, Narrowing(kept, without))
                        assert matrix.images[name] == with_narrowed(MATRIX, name).images[name]


def test_a_name_that_could_be_two_parts_is_refused() -> None:
    compiled = MATRIX.compile["llist"]
    backend = MATRIX.backends["trtllm"].model_copy(update={"compile": ["a", "a-b", "b"]})
    matrix = MATRIX.model_copy(
        update={
            "compile": {"a": compiled, "b": compiled, "a-b": compiled},
            "backends": {**MATRIX.backends, "trtllm": backend},
        }
    )
    with pytest.raises(LockstepError, match="could be read as another part"):
        narrow(matrix, "trtllm", Narrowing((), ("a-b",)))
    assert narrow(matrix, "trtllm", Narrowing((), ("b",)))[1] == "trtllm-without-b"


def test_a_part_of_a_part_is_refused() -> None:
    matrix, name = narrow(MATRIX, "megatron", Narrowing.parse(without="flash-attn"))
    with pytest.raises(LockstepError, match="is a part of megatron already; say IMAGE=megatron"):
        narrow(matrix, name, Narrowing.parse(without="causal-conv1d"))
    with pytest.raises(LockstepError, match="is a part of megatron already"):
        chosen_image(name, MATRIX, without="causal-conv1d")
    assert chosen_image(name, MATRIX)[1] == chosen_image("megatron", MATRIX, without="flash-attn")[1] == name


def test_the_other_layers_are_those_of_the_whole_image() -> None:
    matrix, name = narrow(MATRIX, "megatron", Narrowing.parse(without="flash-attn"))
    (text,) = [text for path, text in render_narrowed(matrix, name).items() if path.name == "Dockerfile"]
    whole = render(MATRIX)[ROOT / "images" / "megatron" / "Dockerfile"]
    assert "flash-attn" in whole
    assert re.findall(r".*flash-attn.*", text) == [
        f"# Image {name}: Megatron on torch 2.13; without flash-attn",
        f'      org.opencontainers.image.title="{name}" \\',
        '      org.opencontainers.image.description="Megatron on torch 2.13; without flash-attn" \\',
    ]
    fewer, all_of_it = stages(text), stages(whole)
    layers = {stage for stage in fewer if not stage.startswith(("release", "files-"))}
    assert {stage: fewer[stage] for stage in layers} == {stage: all_of_it[stage] for stage in layers}
    assert {stage for stage in all_of_it if stage not in fewer} == {
        "amd64-megatron-flash-attn",
        "arm64-megatron-flash-attn",
    }


def stages(dockerfile: str) -> dict[str, str]:
    """Return each stage's text under its name, without the comment lines between stages."""
    parts = re.split(r"^FROM .*? AS (\S+)$", dockerfile, flags=re.MULTILINE)
    bodies = ("\n".join(line for line in body.splitlines() if not line.startswith("#")) for body in parts[2::2])
    return dict(zip(parts[1::2], (body.strip() for body in bodies), strict=True))


def test_modules_of_what_is_left_out_are_known() -> None:
    without = "flash-attn transformer-engine-torch antlr4-python3-runtime deep-ep"
    matrix, name = narrow(MATRIX, "rl", Narrowing.parse(without=without))

    def of(module: str, backend: str = "megatron") -> str:
        return left_out_module(matrix, name, backend, module)

    assert of("flash_attn") == of("flash_attn.bert_padding") == of("flash_attn_2_cuda") == "flash-attn"
    assert of("transformer_engine.pytorch.module") == "transformer-engine-torch"
    assert of("torch, transformer_engine.pytorch") == "transformer-engine-torch"
    assert of("transformer_engine") == of("torch") == of("torch, torchvision") == of("causal_conv1d") == ""
    assert of("antlr4", "trtllm") == "antlr4-python3-runtime"
    assert of("deep_ep", "vllm") == "deep-ep"
    assert of("flash_attn", "vllm") == of("deep_ep", "sglang") == "", "they never had it"
    assert left_out_module(matrix, "rl", "megatron", "flash_attn") == ""


def test_an_import_that_needs_what_is_left_out_names_it() -> None:
    matrix, name = narrow(MATRIX, "megatron", Narrowing.parse(without="flash-attn"))

    def of(said: str) -> str:
        return blamed(matrix, name, "megatron", said)

    assert of("ModuleNotFoundError: No module named 'flash_attn.layers'") == "flash-attn"
    assert of("importlib.metadata.PackageNotFoundError: No package metadata was found for flash-attn") == "flash-attn"
    assert of("ModuleNotFoundError: No module named 'wget'") == of("") == ""
    assert blamed(matrix, "megatron", "megatron", "No module named 'flash_attn'") == ""


def test_audits_and_explanations_say_that_it_is_left_out() -> None:
    wanted = wanted_of(Arch.X86_64, MATRIX, ("flash-attn",))
    assert wanted["megatron"].left_out == ("flash-attn",)
    assert wanted["vllm"].left_out == ()
    assert wanted_of(Arch.X86_64, MATRIX)["megatron"].left_out == ()
    core = Installed("megatron-core", "0.19.2", ("flash-attn",))
    about = wanted["megatron"]
    found = check_metadata([core], Arch.X86_64, "3.13", roots=("flash-attn",), excluded=about.excluded)
    assert {(item.kind, item.level, item.why) for item in found} == {("missing", "waived", "left out by WITHOUT=")}
    assert len(found) == 2
    backend = MATRIX.backends["megatron"]
    flash, arch = Installed("flash-attn", "2.8.1", ("einops",)), Arch.X86_64
    said = explain(
        "flash-attn", [core, flash], backend, {}, name="megatron", arch=arch, python="3.13", without=("flash-attn",)
    )
    assert said.verdict() == "flash-attn is left out: WITHOUT= names it"
    assert [bound.source for bound in said.bounds] == ["WITHOUT=", "megatron-core 0.19.2"]


def test_a_rule_about_what_is_left_out_is_no_failure() -> None:
    rules = AuditRules(
        expected=[Expected(backend=["megatron"], path="flash_attn/*.so", why="a plug-in that is optional")]
    )
    today = datetime.date(2027, 1, 1)
    (whole,) = apply_rules([], rules, arch="x86_64", today=today, backends=["megatron"])
    (part,) = apply_rules([], rules, arch="x86_64", today=today, backends=["megatron"], lacking=["megatron"])
    assert (whole.level, part.level) == ("fail", "note")


def test_an_image_itself_says_what_it_was_made_without(tmp_path: Path) -> None:
    def layout(title: str) -> Path:
        path = tmp_path / title
        config = {"architecture": "amd64", "config": {"Labels": {"org.opencontainers.image.title": title}}}
        blobs = Layout(path)
        about = put_blob(blobs, json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
        body = json.dumps({"config": about.to_json(), "layers": []}).encode()
        manifest = put_blob(blobs, body, OCI_MANIFEST).to_json()
        (path / "index.json").write_text(json.dumps({"manifests": [manifest]}))
        (path / "oci-layout").write_text("{}")
        return path

    part, whole = layout("megatron-without-flash-attn"), layout("megatron")
    assert left_out_of(part, None, (), MATRIX) == ("flash-attn",)
    assert left_out_of(part, None, ("flash-attn",), MATRIX) == ("flash-attn",)
    assert left_out_of(whole, None, (), MATRIX) == ()
    with pytest.raises(LockstepError, match='calls itself "megatron", which leaves out nothing'):
        left_out_of(whole, None, ("flash-attn",), MATRIX)
    venv = tmp_path / "venv"
    venv.mkdir()
    assert left_out_of(venv, None, ("flash-attn",), MATRIX) == ("flash-attn",)
    with pytest.raises(LockstepError, match="numpy is not compiled from source"):
        left_out_of(venv, None, ("numpy",), MATRIX)


def test_the_job_on_slurm_does_not_import_it() -> None:
    matrix, name = narrow(MATRIX, "megatron", Narrowing.parse(without="flash-attn"))
    lines = job_text(name, matrix, refs.parse("host:5000/x:1")).splitlines()
    assert "probe megatron causal_conv1d" in lines
    assert "probe megatron flash_attn" not in lines
    assert "probe megatron flash_attn" in job_text("megatron", MATRIX, refs.parse("host:5000/x:1")).splitlines()


def test_provenance_says_it_and_that_of_whole_images_is_as_before() -> None:
    matrix, name = narrow(MATRIX, "megatron", Narrowing.parse(without="flash-attn"))
    recipe = Recipe(name, Arch.X86_64, "bootstrap", "zstd", 1, "", "", {}, {})
    asked = json.loads(provenance(replace(recipe, part=told(matrix, name)), "host/x", "sha256:0").body)
    parameters = asked["predicate"]["buildDefinition"]["externalParameters"]
    assert parameters["part"] == {"of": "megatron", "without_backends": [], "without": ["flash-attn"]}
    whole = json.loads(provenance(recipe, "host/x", "sha256:0").body)["predicate"]["buildDefinition"]
    assert set(whole["externalParameters"]) == {"image", "arch", "base", "compression"}
