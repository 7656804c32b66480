"""check-source on the published wheels: the breakages of vLLM 0.26.0 -> 0.29.0 and torch 2.11.0 -> 2.13.0.

The sample tree has each kind once, in `downstream_broken` wrong and in `downstream_right` right. Only the Python files
of the wheels are fetched, about 45 MB for the four.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.errors import LockstepError
from lockstep.source import SourceReport, check_source
from lockstep.source.fetch import fetch_sources

DATA = Path(__file__).parents[1] / "data"


def vllm(tree: str) -> SourceReport:
    return check_source(DATA / tree, "vllm", "0.29.0", "0.26.0")


def test_every_breakage_of_the_vllm_bump_is_named() -> None:
    found = {(item.kind, item.path, item.line, item.symbol) for item in vllm("downstream_broken").new}
    original = "vllm.model_executor.layers.quantization.kv_cache:BaseKVCacheMethod.process_weights_after_loading"
    assert found == {
        ("import", "rollout/server.py", 3, "vllm.entrypoints.openai.engine.protocol.ErrorResponse"),
        ("import", "rollout/server.py", 3, "vllm.entrypoints.openai.engine.protocol.UsageInfo"),
        ("field", "rollout/server.py", 7, "UsageInfo(completion_tokens_details)"),
        ("collision", "rollout/extension.py", 12, "WeightSync.synchronize_device"),
        ("proxy", "rollout/proxy.py", 6, "RemoteEngine.check_admission"),
        ("call", "rollout/moe.py", 15, "make_fp8_moe_kernel(layer)"),
        ("call", "rollout/moe.py", 24, "nvfp4.make_nvfp4_moe_kernel(layer)"),
        ("mirror", "rollout/kv_cache.py", 8, original),
        ("default", "rollout/engine.py", 8, "AsyncEngineArgs(mm_device_do_normalize)"),
        ("call", "rollout/engine.py", 12, "LLM(max_num_partial_prefills)"),
    }


def test_the_moved_import_says_where_to() -> None:
    fixes = {item.symbol: item.fix for item in vllm("downstream_broken").new}
    moved = "moved: from vllm.entrypoints.serve.engine.protocol import UsageInfo"
    assert fixes["vllm.entrypoints.openai.engine.protocol.UsageInfo"] == moved


def test_the_right_tree_is_silent() -> None:
    report = vllm("downstream_right")
    assert report.new == ()
    assert report.known == ()


def test_named_tensors_are_gone_from_torch() -> None:
    report = check_source(DATA / "downstream_broken", "torch", "2.13.0", "2.11.0")
    assert {(item.kind, item.path, item.line, item.symbol) for item in report.new} == {
        ("attribute", "rollout/tensors.py", 7, "Tensor.names"),
        ("attribute", "rollout/tensors.py", 12, "Tensor.has_names"),
    }
    assert check_source(DATA / "downstream_right", "torch", "2.13.0", "2.11.0").new == ()


def test_only_sources_are_fetched_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_STATE", str(tmp_path))
    first = fetch_sources("vllm", "0.29.0")
    assert first.fetched < 16_000_000
    assert "vllm/_C_stable_libtorch.abi3.so" in first.names()
    assert fetch_sources("vllm", "0.29.0").fetched == 0


def test_a_version_that_does_not_exist() -> None:
    with pytest.raises(LockstepError, match=r"vllm has no version 0\.29\.999"):
        check_source(DATA / "downstream_right", "vllm", "0.29.999")


def test_vllm_has_no_false_alarm_against_itself(tmp_path: Path) -> None:
    """The engine and the servers, as downstream of the package that they are: nothing, not even aside."""
    sources = fetch_sources("vllm", "0.29.0")
    for name in sources.names():
        if name.endswith(".py"):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sources.read(name))
    for part in ("v1", "entrypoints", "engine", "config"):
        report = check_source(tmp_path / "vllm" / part, "vllm", "0.29.0")
        assert report.new == ()
        assert report.notes == ()
