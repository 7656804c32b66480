"""What leaves a compile stage: the same bytes each time, and no path of the build in it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import auditkit
from lockstep.paths import DOCKER

SITE = "/opt/build/lib/python3.13/site-packages"


@pytest.fixture(scope="module")
def runpath() -> ModuleType:
    spec = importlib.util.spec_from_file_location("runpath", DOCKER / "build/runpath.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["runpath"] = module
    spec.loader.exec_module(module)
    return module


def paths_of(path: Path) -> list[str]:
    text = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    return [line.split("[")[1].rstrip("]") for line in text.splitlines() if "RUNPATH" in line or "RPATH" in line]


@pytest.mark.parametrize(
    ("given", "member", "wanted"),
    [
        (f"{SITE}/nvidia/nvshmem/lib", "deep_ep_cpp.so", "$ORIGIN/nvidia/nvshmem/lib"),
        (f"{SITE}/torch/lib:/usr/lib/x", "a/b/c.so", "$ORIGIN/../../torch/lib:/usr/lib/x"),
        ("/usr/lib/x", "c.so", "/usr/lib/x"),
        ("$ORIGIN/../lib", "c.so", "$ORIGIN/../lib"),
        (f"{SITE}-other/lib", "c.so", f"{SITE}-other/lib"),
    ],
)
@pytest.mark.parametrize("tag", ["--enable-new-dtags", "--disable-new-dtags"])
def test_a_search_path_of_the_build_becomes_one_of_the_venv(
    tmp_path: Path, runpath: ModuleType, given: str, member: str, wanted: str, tag: str
) -> None:
    made = auditkit.library(tmp_path / "x.so", "int x(void) { return 1; }", flags=[f"-Wl,-rpath,{given}", f"-Wl,{tag}"])
    made.write_bytes(runpath.relocate(made.read_bytes(), member, SITE))
    assert paths_of(made) == [wanted]


def test_what_has_no_search_path_and_what_is_no_object_stay_as_they_are(tmp_path: Path, runpath: ModuleType) -> None:
    made = auditkit.library(tmp_path / "x.so", "int x(void) { return 1; }").read_bytes()
    assert runpath.relocate(made, "x.so", SITE) == made
    assert runpath.relocate(b"text", "x.py", SITE) == b"text"
