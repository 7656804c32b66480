"""A compiled and a mirrored wheel, from source and index to an image of two venvs. Both are stand-ins."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import auditkit
import imagekit
import wheelkit
from lockstep.engine import ensure_engine
from lockstep.paths import ROOT, state_dir
from lockstep.render import uv_requirement

BUILD = """
import pathlib
pathlib.Path("lib").mkdir()
pathlib.Path("lib/outside_ext.py").write_text("BUILT = 'from source'\\n")
"""
FOLDER = "/opt/trtllm_wheels"


@dataclass
class Place:
    """The checkout of the test, its index, the mirrored wheel and that wheel's hash."""

    checkout: imagekit.Checkout
    index: wheelkit.Index
    wheel: Path
    sha256: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("outside")
    source = wheelkit.source_package(folder, "outside-ext", "1.0", BUILD)
    kept = state_dir() / "sources" / wheelkit.digest(source)
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, kept)
    wheel = wheelkit.stand_in(folder, "outside-big", "1.0rc1", f"cp313-cp313-linux_{imagekit.ARCH}", ["outside-dep<2"])
    plain = [auditkit.wheel(folder, "outside-dep", version, {"outside_dep.py": b""}) for version in ("1.0", "2.0")]
    pins = folder / "pins.txt"
    pins.write_text(uv_requirement(ROOT) + "\n")
    words = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-d", str(folder), "-r", str(pins)]
    subprocess.run([sys.executable, *words], check=True)
    with wheelkit.index([wheel, *plain, *folder.glob("uv-*.whl")]) as index:
        parts = ", compile: [outside-ext], mirror: [outside-big]"
        made = imagekit.tiny(folder / "checkout", index.url, {"one": ["outside-dep"], "two": ["outside-dep"]}, parts)
        versions = made.root / "versions.yaml"
        versions.write_text(
            versions.read_text()
            + f"""compile:
  outside-ext:
    version: "1.0"
    why: a stand-in that the test builds
    source: {{sdist_sha256: "{wheelkit.digest(source)}"}}
    cuda: null
    build_requires: [outside-dep]
    imports: [outside_ext]
mirror:
  outside-big:
    version: "1.0rc1"
    why: a stand-in that the test mirrors
    wheels:
      {imagekit.ARCH}: {{}}
    requires: [outside-dep<2]
"""
        )
        yield Place(made, index, wheel, wheelkit.digest(wheel))
    shutil.rmtree(kept, ignore_errors=True)


def test_1_what_is_not_at_hand_stops_the_build_before_it_starts_and_is_named(place: Place) -> None:
    place.checkout.ok("lock")
    place.checkout.ok("lock-wheels")
    lock = (place.checkout.root / "images" / "one" / f"lock.{imagekit.ARCH}.txt").read_text()
    assert "\noutside-ext==1.0  # compile for plain\n" in lock
    assert "\noutside-big==1.0rc1  # not mirrored\n" in lock
    assert "\noutside-dep==1.0 --hash" in lock, "the declared requirement holds it below 2"
    said = place.checkout.fails("image", "tiny")
    assert "outside-big 1.0rc1" in said
    assert "make mirror PACKAGE=outside-big" in said
    assert "make wheels PACKAGE=outside-ext LINE=plain" in said
    assert not (place.checkout.root / "build" / "oci").exists()


def test_2_mirrored_and_compiled_they_are_in_both_venvs_and_stored_once(place: Place) -> None:
    there = place.checkout
    there.ok("mirror")
    assert place.sha256 in (there.root / "versions.yaml").read_text()
    there.ok("lock")
    there.ok("image", "tiny", "--wheels")
    code = "import outside_ext, outside_big; print(outside_ext.BUILT, outside_big.STAND_IN)"
    for venv in ("one", "two"):
        assert _inside("tiny", f"/opt/venvs/{venv}/bin/python", "-c", code) == "from source True\n"
    listed = _inside("tiny", "find", FOLDER, "-type", "f", "-printf", "%p %m %U %T@\n")
    epoch = json.loads((ROOT / "versions.yaml").read_text().split("epoch: ")[1].split(" ")[0])
    assert listed == f"{FOLDER}/{place.sha256}/{place.wheel.name} 644 0 {epoch}.0000000000\n"
    assert _inside("tiny", "sha256sum", f"{FOLDER}/{place.sha256}/{place.wheel.name}").split()[0] == place.sha256
    site = "lib/python3.13/site-packages"
    for module in ("outside_ext.py", "outside_big/__init__.py"):
        stats = [
            _inside("tiny", "stat", "-c", "%i %h", f"/opt/venvs/{venv}/{site}/{module}") for venv in ("one", "two")
        ]
        assert stats[0] == stats[1]
        assert stats[0].split()[1] == "2"
    assert _inside("tiny", "find", "/opt/venvs", "-name", "direct_url.json") == ""


def test_3_the_same_bytes_come_out_cold(place: Place) -> None:
    digest = place.checkout.digest("tiny")
    assert "4 of 4 layers" in place.checkout.ok("image", "tiny")
    place.checkout.ok("image", "tiny", "--no-cache")
    assert place.checkout.digest("tiny") == digest


def test_4_the_probes_and_a_narrowed_image_pass(place: Place) -> None:
    place.checkout.ok("probe", "tiny", "--select", "test_A7 or interpreter")
    place.checkout.ok("image", "tiny", "--backends", "two")
    assert "two" in _inside("tiny-two", "ls", "/opt/venvs")
    assert "one" not in _inside("tiny-two", "ls", "/opt/venvs")
    place.checkout.ok("probe", "tiny", "--backends", "two", "--select", "test_A7 or interpreter")


def test_5_a_wheel_that_was_changed_in_the_store_does_not_reach_an_image(place: Place) -> None:
    (stored,) = (place.checkout.root / "wheels").glob("*/outside_ext-*.whl")
    stored.write_bytes(stored.read_bytes() + b" ")
    said = place.checkout.fails("image", "tiny")
    assert "is not what was built under this key" in said
    kept = place.checkout.root / "wheels" / "mirror" / place.sha256 / place.wheel.name
    kept.write_bytes(kept.read_bytes() + b" ")
    assert "was changed or cut short" in place.checkout.fails("image", "tiny")


def _inside(image: str, *command: str) -> str:
    engine = ensure_engine()
    words = engine.docker_cmd("run", "--rm", "--network", "none", f"lockstep/{image}:{imagekit.ARCH}", *command)
    return subprocess.run(words, env=engine.env, check=True, capture_output=True, text=True).stdout
