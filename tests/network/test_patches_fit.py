"""Our vLLM patches on the real, unpatched files of each version that they are declared for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from patch_model import State, choose, judge, parse

from lockstep.arch import Arch
from lockstep.patches import forecast
from patchkit import PATCHES, apply, integrity
from vllmkit import VERSIONS, make_venv, patched, plain

OURS = [parse(path.read_text(), path.name) for path in sorted((PATCHES / "vllm").glob("*.patch"))]

# The table of what each version needs; "-" is a concern that the version does not have.
EXPECTED = {
    "vllm-message-queue-port": "applied applied applied applied applied",
    "vllm-multimodal-normalize-off": "skipped skipped skipped applied applied",
    "vllm-openai-namespace-tool": "applied applied applied applied applied",
    "vllm-ray-executor-interpreter": "inert inert inert inert inert",
    "vllm-routed-experts-capture": "skipped skipped skipped applied applied",
    "vllm-tcpstore-port": "applied applied applied applied fixed-upstream",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_patches_apply_to_the_published_files_and_are_recognised_again(version: str, tmp_path: Path) -> None:
    site = make_venv(tmp_path / "venv", version)
    options = ("--package", "vllm", "--report", tmp_path / "report.json")
    first = apply(tmp_path / "venv", PATCHES, *options)
    assert first.returncode == 0, first.stderr
    report = (tmp_path / "report.json").read_bytes()
    found = {row["id"]: row["status"] for row in json.loads(report)["patches"]}
    assert found == {name: states.split()[VERSIONS.index(version)] for name, states in EXPECTED.items()}
    second = apply(tmp_path / "venv", PATCHES, *options)
    assert "nothing to change" in second.stdout
    assert (tmp_path / "report.json").read_bytes() == report
    for row in json.loads(report)["patches"]:
        source = (site / row["file"]).read_text()
        compile(source, row["file"], "exec")
    # The wheel's libraries were not fetched; of what is there, RECORD must be right.
    assert [line for line in integrity(site) if line.endswith("differs")] == []


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0", "0.29.0"])
def test_changing_any_line_of_any_anchor_stops_the_build(version: str) -> None:
    def read(path: str) -> str | None:
        file = plain(version) / path
        return file.read_text() if file.is_file() else None

    checked = 0
    for verdict in choose(OURS, version, read):
        if verdict.state is not State.APPLIES:
            continue
        for hunk in verdict.patch.hunks:
            whole = read(hunk.path) or ""
            lines = hunk.old.splitlines(keepends=True)
            for number in range(len(lines)):
                broken = [*lines[:number], "# changed upstream\n", *lines[number + 1 :]]
                text = whole.replace(hunk.old, "".join(broken))
                assert text != whole
                found = judge(verdict.patch, lambda path, text=text, at=hunk.path: text if path == at else read(path))  # type: ignore[misc]
                assert found.state is State.BROKEN, (verdict.patch.filename, hunk.start, number)
                checked += 1
    assert checked > 30


def test_the_fix_in_0_29_is_recognised_and_said_and_the_file_stays(tmp_path: Path) -> None:
    path = "vllm/v1/executor/ray_executor_v2.py"
    make_venv(tmp_path / "venv", "0.29.0")
    done = apply(tmp_path / "venv", PATCHES, "--package", "vllm")
    assert "vllm-tcpstore-port: fixed-upstream (fixed upstream in 0.29.0" in done.stdout
    assert (patched("0.29.0") / path).read_bytes() == (plain("0.29.0") / path).read_bytes()


def test_a_forecast_reads_only_the_files_that_it_needs() -> None:
    found = forecast("vllm", "0.30.0", Arch.X86_64, "3.13")
    assert {row.id: row.state for row in found.rows} == {
        "vllm-message-queue-port": "undeclared",
        "vllm-multimodal-normalize-off": "undeclared",
        "vllm-openai-namespace-tool": "undeclared",
        "vllm-ray-executor-interpreter": "undeclared",
        "vllm-routed-experts-capture": "undeclared",
        "vllm-tcpstore-port": "fixed upstream",
    }
    assert found.fetched < 5_000_000  # of a wheel of 314 MB


def test_C4_rays_vendored_aiohttp_is_there_to_be_removed_on_both_architectures() -> None:
    for arch in Arch:
        rows = forecast("ray", "2.56.1", arch, "3.13", frozenset({"ray", "aiohttp"})).rows
        assert [(row.id, row.state) for row in rows] == [("ray-vendored-aiohttp", "removes 212")]
        (row,) = forecast("ray", "2.56.1", arch, "3.13", frozenset({"ray"})).rows
        assert (row.state, row.stops) == ("broken", True)
