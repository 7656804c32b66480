"""The runtime package with the real torch 2.13, on CPU; torch 2.11 and CUDA IPC are in tests/gpu.

Needs an interpreter with torch; vllmkit.torch_python makes one or takes LOCKSTEP_TORCH_PYTHON.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.runtime_wheel import build
from vllmkit import torch_python

# Saves a checkpoint with the process-based asynchronous checkpointer and says how its daemon met the store.
SAVE = """
import os, sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import _async_process_executor as executor
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

if __name__ == "__main__":
    dist.init_process_group("gloo", rank=0, world_size=1)
    print("prefix store", executor._ProcessGroupInitInfo().use_prefix_store)
    state = {"weight": torch.arange(8)}
    dcp.async_save(
        state, checkpoint_id=sys.argv[1], async_checkpointer_type=AsyncCheckpointerType.PROCESS
    ).result(timeout=300)
    loaded = {"weight": torch.zeros(8, dtype=torch.int64)}
    dcp.load(loaded, checkpoint_id=sys.argv[1])
    print("loaded", torch.equal(loaded["weight"], state["weight"]))
    print("ipc shim", hasattr(torch.UntypedStorage._new_shared_cuda, "lockstep_runtime"))
    sys.stdout.flush()
    os._exit(0)  # the daemon lives until its executor is collected, which this process does not wait for
"""


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Interpreters that see torch, with the package and without it."""
    root = tmp_path_factory.mktemp("torch")
    wheel = build(root)
    code = "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])"
    torch = subprocess.run([torch_python(), "-c", code], check=True, capture_output=True, text=True).stdout
    for name in ("with", "without"):
        subprocess.run([torch_python(), "-m", "venv", "--without-pip", root / name], check=True)
        site = next((root / name).glob("lib/python3.*/site-packages"))
        (site / "torch.pth").write_text(torch)
        if name == "with":
            subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, site], check=True)
    return {name: root / name / "bin" / "python" for name in ("with", "without")}


def _save(python: Path, folder: Path, **environment: str) -> list[str]:
    script = folder / "save.py"
    script.write_text(SAVE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": "0", **environment}
    words = [str(python), str(script), str(folder / "checkpoint")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=500, env=env)
    assert not done.returncode, done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if line.startswith(("prefix", "loaded", "ipc"))]


def test_the_checkpoint_daemon_meets_on_the_training_store(pythons: dict[str, Path], tmp_path: Path) -> None:
    found = _save(pythons["with"], tmp_path)
    assert found == ["prefix store True", "loaded True", "ipc shim False"]


def test_without_the_package_it_probes_a_port(pythons: dict[str, Path], tmp_path: Path) -> None:
    assert _save(pythons["without"], tmp_path)[0] == "prefix store False"


def test_an_explicit_value_wins(pythons: dict[str, Path], tmp_path: Path) -> None:
    assert _save(pythons["with"], tmp_path, DCP_USE_PREFIX_STORE="0")[0] == "prefix store False"
