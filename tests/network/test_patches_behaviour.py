"""What our vLLM patches change: single functions out of the real sources, plain and patched, on stand-ins.

The functions are the published ones; what they call is a stand-in, named in each test, because importing the whole of
vLLM needs its compiled extensions. The message queue is tested with the real modules, in test_patches_queue.py.
"""

from __future__ import annotations

import ast
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import pytest

from lockstep.arch import Arch
from lockstep.index import find_wheel, open_wheel
from vllmkit import VERSIONS, extract, patched, plain

BOTH = [pytest.param(plain, id="plain"), pytest.param(patched, id="patched")]
Sources = Callable[[str], Path]


class Log:
    """A stand-in for vLLM's logger: takes any call."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args, **_kwargs: None


# ---- the TCPStore's port, 0.25 to 0.28 ----


@pytest.fixture
def base_port() -> Iterator[int]:
    """A port from which on 200 are free, below the ephemeral range. Nothing else on this machine should use them."""
    for base in range(21000, 31000, 500):
        held = []
        try:
            for port in range(base, base + 200):
                held.append(socket.socket())
                held[-1].bind(("", port))
        except OSError:
            continue
        finally:
            for item in held:
                item.close()
        yield base
        return
    pytest.skip("no 200 free ports in a row")


def _select(sources: Sources, version: str, vllm_port: int | None) -> Callable[[int | None, int], int]:
    """Return RayExecutorV2._select_tcpstore_port over the real port search of network_utils."""
    root = sources(version) / "vllm"
    envs = SimpleNamespace(VLLM_PORT=vllm_port, VLLM_DP_MASTER_PORT=0)
    names = ["_get_open_port", "get_open_port", "_get_reserved_port_range"]
    common = {"envs": envs, "logger": Log(), "socket": socket, "os": os}
    search = extract(root / "utils/network_utils.py", names, common)
    file = root / "v1/executor/ray_executor_v2.py"
    function: Callable[[int | None, int], int] = extract(file, ["RayExecutorV2._select_tcpstore_port"], search)[
        "_select_tcpstore_port"
    ]
    return function


def _bind(port: int) -> socket.socket:
    bound = socket.socket()
    bound.bind(("", port))
    bound.listen()
    return bound


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0", "0.27.0", "0.28.0"])
def test_the_store_does_not_choose_the_port_that_the_queue_takes(version: str, base_port: int) -> None:
    # The executor's order: the store's port is chosen, the queue binds the first port of the band, the store binds.
    chosen = _select(plain, version, base_port)(None, 0)
    with _bind(base_port), pytest.raises(OSError, match="in use"):
        _bind(chosen)
    chosen = _select(patched, version, base_port)(None, 0)
    with _bind(base_port), _bind(chosen):
        assert base_port < chosen < base_port + 1000


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0", "0.27.0", "0.28.0"])
def test_engines_of_one_node_get_windows_of_their_own_past_the_queues(version: str, base_port: int) -> None:
    select = _select(patched, version, base_port)
    with _bind(base_port + 32):
        ports = [select(rank, 0) for rank in (None, 0, 1, 2)]
    assert [port - base_port for port in ports] == [33, 33, 64, 96]


@pytest.mark.parametrize("sources", BOTH)
def test_without_vllm_port_the_search_is_as_it_was(sources: Sources, base_port: int) -> None:
    select = _select(sources, "0.25.1", None)
    assert select(1, base_port) == base_port + 100 + 32
    assert select(None, base_port) not in range(base_port, base_port + 1000)


# ---- the interpreter of the v1 Ray executor's workers ----


class Started(Exception):  # noqa: N818 - it ends the function under test, it is no error
    """Carries the options that an actor was started with."""


def _runtime_env(sources: Sources, version: str, job_env: dict[str, Any] | None, **kwargs: Any) -> dict[str, Any]:
    """Run _init_workers_ray up to the first ray.remote and return the runtime_env that it passes."""

    def remote(**options: Any) -> None:
        raise Started(options)

    namespace: dict[str, Any] = {
        "envs": SimpleNamespace(VLLM_RAY_PER_WORKER_GPUS=1, VLLM_RAY_BUNDLE_INDICES="0"),
        "current_platform": SimpleNamespace(ray_noset_device_env_vars=["NOSET"], ray_device_key="GPU"),
        "ray": SimpleNamespace(remote=remote),
        "PlacementGroupSchedulingStrategy": lambda **_options: None,
        "update_runtime_env_for_worker_import": lambda env: env,
        "get_ip": lambda: "10.0.0.1",
        "sys": sys,
    }
    names = ["RayDistributedExecutor._init_workers_ray", "RayDistributedExecutor._update_noset_device_env_vars"]
    found = extract(sources(version) / "vllm/v1/executor/ray_executor.py", names, namespace)
    config = SimpleNamespace(ray_workers_use_nsight=False, world_size=1, ray_runtime_env=job_env)
    engine = SimpleNamespace(parallel_config=config)
    engine._update_noset_device_env_vars = lambda options: found["_update_noset_device_env_vars"](engine, options)
    with pytest.raises(Started) as started:
        found["_init_workers_ray"](engine, None, **kwargs)
    environment: dict[str, Any] = started.value.args[0]["runtime_env"]
    return environment


@pytest.mark.parametrize("version", VERSIONS)
def test_workers_of_the_v1_ray_executor_start_with_the_engines_interpreter(version: str) -> None:
    assert "py_executable" not in _runtime_env(plain, version, None)
    found = _runtime_env(patched, version, None)
    assert found["py_executable"] == sys.executable
    assert found["env_vars"] == {"NOSET": "1"}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_interpreter_that_the_user_names_wins(version: str) -> None:
    assert _runtime_env(patched, version, {"py_executable": "/job"})["py_executable"] == "/job"
    given = {"runtime_env": {"py_executable": "/actor"}}
    assert _runtime_env(patched, version, {"py_executable": "/job"}, **given)["py_executable"] == "/actor"


# ---- the openai client ----


def _imports(sources: Sources, version: str) -> dict[str, Any]:
    """Execute the imports of openai in tool_parsers/utils.py, and the guard that our patch makes of one of them."""
    file = sources(version) / "vllm/tool_parsers/utils.py"
    body: list[ast.stmt] = [
        node
        for node in ast.parse(file.read_text()).body
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("openai")) or isinstance(node, ast.Try)
    ]
    found: dict[str, Any] = {"__name__": "utils"}
    exec(compile(ast.Module(body, []), str(file), "exec"), found)
    return found


def _openai(monkeypatch: pytest.MonkeyPatch, *, has_namespace_tool: bool) -> ModuleType:
    """Put a stand-in for the openai package into sys.modules and return its openai.types.responses."""
    modules = {name: ModuleType(name) for name in ("openai", "openai.types", "openai.types.responses")}
    modules["openai.types.responses.tool"] = ModuleType("openai.types.responses.tool")
    responses = modules["openai.types.responses"]
    for name in ("FunctionTool", "ToolChoiceFunction", *(["NamespaceTool"] if has_namespace_tool else [])):
        setattr(responses, name, type(name, (), {}))
    modules["openai.types.responses.tool"].Tool = object  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return responses


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_openai_client_imports_and_nothing_is_a_namespace_tool(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    responses = _openai(monkeypatch, has_namespace_tool=False)
    with pytest.raises(ImportError, match="NamespaceTool"):
        _imports(plain, version)
    found = _imports(patched, version)
    tool = responses.FunctionTool()
    assert not isinstance(tool, found["NamespaceTool"])
    assert isinstance(tool, (found["FunctionTool"], found["NamespaceTool"]))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_newer_openai_client_gives_its_own_type(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    responses = _openai(monkeypatch, has_namespace_tool=True)
    assert _imports(patched, version)["NamespaceTool"] is responses.NamespaceTool


@pytest.mark.parametrize(("version", "there"), [("2.24.0", False), ("2.25.0", True)])
def test_the_type_came_with_openai_2_25(version: str, there: bool) -> None:
    with open_wheel(find_wheel("openai", version, Arch.X86_64, "3.13")) as archive:
        assert ("NamespaceTool" in archive.read("openai/types/responses/__init__.py").decode()) is there


# ---- multimodal normalisation ----


def _resolve(sources: Sources, version: str, given: bool | None, *, capable: bool) -> bool:
    namespace = {"envs": SimpleNamespace(VLLM_USE_RUST_FRONTEND=False), "logger": Log()}
    found = extract(
        sources(version) / "vllm/config/model.py", ["ModelConfig._resolve_mm_device_do_normalize"], namespace
    )
    config = SimpleNamespace(_model_info=SimpleNamespace(supports_mm_device_do_normalize=capable))
    resolved: bool = found["_resolve_mm_device_do_normalize"](config, given)
    return resolved


@pytest.mark.parametrize("version", ["0.28.0", "0.29.0"])
def test_normalisation_on_the_gpu_is_off_unless_asked_for(version: str) -> None:
    assert _resolve(plain, version, None, capable=True) is True
    assert _resolve(patched, version, None, capable=True) is False
    assert _resolve(patched, version, True, capable=True) is True
    assert _resolve(patched, version, False, capable=True) is False
    assert _resolve(patched, version, True, capable=False) is False
    assert _resolve(patched, version, None, capable=False) is False


# ---- capturing routed experts ----


class MoERunner:
    """A stand-in for the layer that the binder looks for."""

    layer_id = 3


class BaseRouter:
    """A stand-in for a router: chooses the experts 7 and 9 for every token."""

    capture_fn: Callable[[Any], None] | None = None

    def set_capture_fn(self, function: Callable[[Any], None]) -> None:
        self.capture_fn = function

    def _compute_routing(self, x: Any, logits: Any, dtype: Any, *, input_ids: Any = None) -> tuple[Any, Any]:
        assert (x, logits, dtype, input_ids) == ("x", "logits", None, "ids")
        return "weights", [7, 9]


class FusedMoEExpertsMonolithic:
    """A stand-in for a kernel that routes inside."""

    def __init__(self, *, captures: bool) -> None:
        self._captures = captures
        self.bound: Callable[[Any], None] | None = None

    def supports_routing_replay_capture(self) -> bool:
        return self._captures

    def set_capture_fn(self, function: Callable[[Any], None]) -> None:
        self.bound = function


class Experts:
    """A stand-in for RoutedExperts."""

    def forward_monolithic(self, x: Any, router_logits: Any = None, input_ids: Any = None) -> Any:
        return ("out", x, router_logits, input_ids)


@runtime_checkable
class CaptureSource(Protocol):
    """Replaces RoutedExpertsCaptureSource, which the stand-ins must not match."""

    never: int


def _layer(*, monolithic: bool, captures: bool = False, router: Any = None) -> Any:
    kernel = FusedMoEExpertsMonolithic(captures=captures)
    layer: Any = MoERunner()
    layer.router = router or BaseRouter()
    layer.routed_experts = Experts()
    impl = SimpleNamespace(impl=SimpleNamespace(fused_experts=kernel))
    layer._quant_method = SimpleNamespace(is_monolithic=monolithic, moe_kernel=impl)
    layer.kernel = kernel
    return layer


class Capturer:
    """A stand-in for RoutedExpertsCapturer: keeps what it is given."""

    def __init__(self) -> None:
        self.got: list[tuple[int, Any]] = []

    def capture(self, layer_id: int, topk_ids: Any) -> None:
        self.got.append((layer_id, topk_ids))


def _binder(monkeypatch: pytest.MonkeyPatch, sources: Sources, version: str) -> Callable[[Any, Any], None]:
    fused = "vllm.model_executor.layers.fused_moe"
    stand_ins: dict[str, dict[str, Any]] = {
        f"{fused}.layer": {"MoERunner": MoERunner},
        f"{fused}.modular_kernel": {"FusedMoEExpertsMonolithic": FusedMoEExpertsMonolithic},
        f"{fused}.router.base_router": {"BaseRouter": BaseRouter},
    }
    for name, values in stand_ins.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    file = sources(version) / "vllm/model_executor/layers/fused_moe/routed_experts_capturer.py"
    names = ["_route_before_monolithic", "bind_routed_experts_capturer"]
    bind: Callable[[Any, Any], None] = extract(file, names, {"RoutedExpertsCaptureSource": CaptureSource})[names[1]]
    return bind


def _model(*layers: Any) -> Any:
    return SimpleNamespace(modules=lambda: layers)


@pytest.mark.parametrize("version", ["0.28.0", "0.29.0"])
def test_the_capture_falls_back_to_the_router(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    with pytest.raises(ValueError, match="not supported with monolithic"):
        _binder(monkeypatch, plain, version)(_model(_layer(monolithic=True)), Capturer())
    bind = _binder(monkeypatch, patched, version)
    layer, capturer = _layer(monolithic=True), Capturer()
    bind(_model(layer), capturer)
    bind(_model(layer), capturer)  # binding anew does not route twice
    assert layer.router.capture_fn is not None
    out = layer.routed_experts.forward_monolithic(x="x", router_logits="logits", input_ids="ids")
    assert out == ("out", "x", "logits", "ids")
    assert capturer.got == [(3, [7, 9])]
    assert layer.kernel.bound is None


@pytest.mark.parametrize("sources", BOTH)
@pytest.mark.parametrize("version", ["0.28.0", "0.29.0"])
def test_other_layers_are_bound_as_before(monkeypatch: pytest.MonkeyPatch, sources: Sources, version: str) -> None:
    bind = _binder(monkeypatch, sources, version)
    inside, modular = _layer(monolithic=True, captures=True), _layer(monolithic=False)
    bind(_model(inside, modular), Capturer())
    assert inside.kernel.bound is not None
    assert inside.router.capture_fn is None
    assert modular.router.capture_fn is not None
    assert "forward_monolithic" not in vars(inside.routed_experts) | vars(modular.routed_experts)
    with pytest.raises(ValueError, match="not supported with router"):
        bind(_model(_layer(monolithic=False, router=object())), Capturer())
    with pytest.raises(ValueError, match="No supported MoE router"):
        bind(_model(), Capturer())
