"""make diff: what changed between two images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditkit import SITE, folder_layer, install, layer, layout, library, venv, wheel
from lockstep.cli import build_app
from lockstep.diff import CLASSES, Change, Side, classify, compare, read_probes, read_side
from lockstep.errors import LockstepError

EMPTY = Side("a", "sha256:a", "x86_64", {}, {}, {}, {}, {}, {})


def test_probes_fall_into_four_classes() -> None:
    a = {("one", "root"): "pass", ("two", "root"): "needs-driver", ("three", "root"): "fail", ("four", "root"): "fail"}
    b = {("one", "root"): "fail", ("two", "root"): "fail", ("three", "root"): "fail", ("four", "root"): "pass"}
    b |= {("new", "user"): "fail", ("same", "user"): "pass"}
    assert classify(a, b) == {
        CLASSES[0]: ("one as root",),
        CLASSES[1]: ("new as user", "two as root"),
        CLASSES[2]: ("three as root",),
        CLASSES[3]: ("four as root",),
    }


def test_layers_and_packages() -> None:
    a = replace(EMPTY, layers={"x": 10, "y": 5}, packages={("vllm", "numpy"): "2.4.6", ("deb", "libc6"): "2.41"})
    b = replace(EMPTY, layers={"x": 10, "z": 7}, packages={("vllm", "numpy"): "2.5.1", ("deb", "libc6"): "2.41"})
    found = compare(a, b)
    assert (found.layers_kept, found.layers_gone, found.layers_new, found.bytes_new) == (1, 1, 1, 7)
    assert found.packages == (Change("vllm: numpy", "2.4.6", "2.5.1"),)


def image(folder: Path, version: str, symbol: str) -> Path:
    site = venv(folder / "v")
    install(site, wheel(folder, "pkg", version, {"pkg/__init__.py": b""}))
    library(site / "pkg/ext.so", f"extern int {symbol}(void); int f(void) {{ return {symbol}(); }}")
    status = b"Package: libc6\nStatus: install ok installed\nVersion: 2.41\n\nPackage: gone\nStatus: deinstall ok\n"
    patches = json.dumps([{"venv": "v", "package": "pkg", "id": "p", "file": "a.py", "status": "applied"}]).encode()
    base = layer({"var/lib/dpkg/status": status, "opt/lockstep/patches.json": patches})
    config = {"Env": ["TZ=UTC", f"VERSION={version}"], "Labels": {"who": "me"}, "Entrypoint": ["/bin/sh"]}
    return layout(folder / "image", [base, folder_layer(folder / "v", "opt/venvs/v")], config=config)


def test_two_images_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_STATE", str(tmp_path / "state"))
    a, b = image(tmp_path / "a", "1", "before"), image(tmp_path / "b", "2", "after")
    side = read_side(str(a), None)
    assert side.packages == {("deb", "libc6"): "2.41", ("v", "pkg"): "1"}
    assert side.patches == {"v pkg p a.py": "applied"}
    found = compare(side, read_side(str(b), None))
    assert found.packages == (Change("v: pkg", "1", "2"),)
    assert found.settings == (Change("env VERSION", "1", "2"),)
    assert found.symbols == (Change("v: pkg/ext.so", "before", "after"),)
    assert (found.layers_kept, found.layers_new, found.patches) == (1, 1, ())
    for name, result in (("a", "pass"), ("b", "fail")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"modules": {"v:pkg": {"root": {"result": result}}}}))
    words = ["diff", str(a), str(b), "--probes-a", str(tmp_path / "a.json"), "--probes-b", str(tmp_path / "b.json")]
    shown = CliRunner().invoke(build_app(), words)
    assert shown.exit_code == 1
    assert "probe, B fails and A passes: v:pkg as root" in shown.output
    data = json.loads(CliRunner().invoke(build_app(), [*words, "--json"]).stdout)
    assert data["packages"] == [{"what": "v: pkg", "before": "1", "after": "2"}]
    assert SITE not in shown.output


@pytest.mark.parametrize("words", [["audit", "venv", "--backends", "v"], ["audit", "venv", "--image", "vllm"]])
def test_an_audit_of_a_path_and_of_an_image_at_once_is_refused(words: list[str]) -> None:
    with pytest.raises(LockstepError, match="names the image to look into, as venv does") as refused:
        CliRunner().invoke(build_app(), words, catch_exceptions=False)
    assert refused.value.where == words[2]


@pytest.mark.parametrize("option", ["--backends", "--without"])
def test_a_part_beside_an_image_b_is_refused(option: str) -> None:
    with pytest.raises(LockstepError, match="names a part of a, as b does") as refused:
        CliRunner().invoke(build_app(), ["diff", "a", "b", option, "v"], catch_exceptions=False)
    assert refused.value.where == option


def test_what_is_no_image_or_record_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="is no image"):
        read_side(str(tmp_path), None)
    (tmp_path / "p.json").write_text("[1]")
    with pytest.raises(LockstepError, match="is no probe record"):
        read_probes(tmp_path / "p.json")
    with pytest.raises(LockstepError, match="there is no probe record"):
        read_probes(tmp_path / "none.json")
