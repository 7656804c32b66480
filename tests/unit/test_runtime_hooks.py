"""The runtime package's hooks, on stand-ins of torch; the real torch is in tests/network and tests/gpu."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.runtime_wheel import SOURCE, build
from lockstep_runtime import HOOKS, checkpoint, ipc, user

PAYLOAD = bytes(range(64))


@pytest.mark.parametrize(
    ("handle", "expected"),
    [
        (b"\x03c" + PAYLOAD, b"\x02c" + PAYLOAD),
        (b"\x09c" + PAYLOAD, b"\x02c" + PAYLOAD),
        (b"\x02c" + PAYLOAD, b"\x02c" + PAYLOAD),
        (b"\x01c" + PAYLOAD, b"\x01c" + PAYLOAD),
        (b"\x03e" + PAYLOAD[:28], b"\x03e" + PAYLOAD[:28]),
        (b"\x02e" + PAYLOAD[:28], b"\x02e" + PAYLOAD[:28]),
        (b"\x03c" + PAYLOAD[:62], b"\x03c" + PAYLOAD[:62]),  # 64 bytes: raw, whatever they begin with
        (PAYLOAD, PAYLOAD),
        (b"", b""),
        (b"\x03", b"\x03"),
    ],
)
def test_only_the_version_of_a_newer_cudamalloc_handle_is_rewritten(handle: bytes, expected: bytes) -> None:
    assert ipc.rewrite(handle) == expected
    assert (ipc.rewrite(handle) is handle) is (handle == expected)


class RefusedError(RuntimeError):
    """What a stand-in's constructor raises."""


def _torch(version: str) -> Any:
    """Return a stand-in for torch whose storage constructor refuses what that line of torch refuses."""

    def new_shared_cuda(*args: Any) -> Any:
        handle = args[1]
        if isinstance(handle, bytes) and len(handle) != 64 and handle[:1] > b"\x02":
            raise RefusedError("received sharable handle from a future version of torch")
        return args

    storage = type("UntypedStorage", (), {"_new_shared_cuda": staticmethod(new_shared_cuda)})
    return SimpleNamespace(__version__=version, UntypedStorage=storage)


REST = (8, 0, b"counter", 0, b"event", True)


def test_a_newer_handle_opens_and_the_other_arguments_pass_as_they_are() -> None:
    torch = _torch("2.11.0+cu130")
    with pytest.raises(RefusedError):
        torch.UntypedStorage._new_shared_cuda(0, b"\x03c" + PAYLOAD, *REST)
    assert ipc.on_torch(torch).startswith("active: torch 2.11.0+cu130")
    opened = torch.UntypedStorage._new_shared_cuda(0, b"\x03c" + PAYLOAD, *REST)
    assert opened == (0, b"\x02c" + PAYLOAD, *REST)
    for handle in (b"\x02c" + PAYLOAD, PAYLOAD, None):
        assert torch.UntypedStorage._new_shared_cuda(0, handle, *REST)[1] is handle


def test_a_refused_expandable_handle_says_what_to_switch_off() -> None:
    torch = _torch("2.11.0")
    ipc.on_torch(torch)
    with pytest.raises(RuntimeError, match="Switch expandable segments off in the process that sends it") as caught:
        torch.UntypedStorage._new_shared_cuda(0, b"\x03e" + PAYLOAD[:28], *REST)
    assert isinstance(caught.value.__cause__, RefusedError)


def test_any_other_error_of_torch_passes_unchanged() -> None:
    torch = _torch("2.11.0")
    ipc.on_torch(torch)
    with pytest.raises(RefusedError):
        torch.UntypedStorage._new_shared_cuda(0, b"\x03x" + PAYLOAD, *REST)
    with pytest.raises(TypeError):
        torch.UntypedStorage._new_shared_cuda()


def test_the_shim_is_laid_over_once() -> None:
    torch = _torch("2.11.0")
    said = ipc.on_torch(torch)
    first = torch.UntypedStorage._new_shared_cuda
    assert ipc.on_torch(torch) == said
    assert torch.UntypedStorage._new_shared_cuda is first


@pytest.mark.parametrize("version", ["2.13.0", "2.12.1", "2.10.0", "3.11.0"])
def test_other_lines_of_torch_are_left_alone(version: str) -> None:
    torch = _torch(version)
    before = torch.UntypedStorage._new_shared_cuda
    assert ipc.on_torch(torch) == f"not needed: torch {version} is not of the 2.11 line"
    assert torch.UntypedStorage._new_shared_cuda is before


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MASTER_ADDR": "host", "MASTER_PORT": "1"}, "1"),
        ({"MASTER_ADDR": "host"}, None),
        ({"MASTER_PORT": "1"}, None),
        ({"MASTER_ADDR": "", "MASTER_PORT": "1"}, None),
        ({}, None),
        ({"MASTER_ADDR": "host", "MASTER_PORT": "1", "DCP_USE_PREFIX_STORE": "0"}, "0"),
        ({"MASTER_ADDR": "host", "MASTER_PORT": "1", "DCP_USE_PREFIX_STORE": ""}, ""),
        ({"DCP_USE_PREFIX_STORE": "1"}, "1"),
    ],
)
def test_checkpoints_use_the_training_store_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str | None
) -> None:
    import os

    for name in ("MASTER_ADDR", "MASTER_PORT", "DCP_USE_PREFIX_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    class Info:
        def __init__(self) -> None:
            self.seen = os.environ.get("DCP_USE_PREFIX_STORE")

    module = SimpleNamespace(_ProcessGroupInitInfo=Info)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0"))
    assert checkpoint.on_executor(module).startswith("active")  # type: ignore[arg-type]
    assert Info().seen == expected
    laid_over = Info.__init__
    checkpoint.on_executor(module)  # type: ignore[arg-type]
    assert Info.__init__ is laid_over


def test_an_older_torch_keeps_its_checkpointer(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(_ProcessGroupInitInfo=object)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.11.0"))
    assert checkpoint.on_executor(module).startswith("not needed")  # type: ignore[arg-type]


def test_a_user_without_a_name_gets_one_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    import getpass
    import os
    import pwd

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    torch: Any = SimpleNamespace()
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("USER", "")
    assert user.on_torch(torch).startswith("active: user id")
    assert getpass.getuser() == f"uid_{os.getuid()}"
    monkeypatch.setenv("USER", "someone")
    assert user.on_torch(torch) == "not needed: the user is someone"


TORCH = '''
"""A stand-in for torch 2.11."""
import threading
__version__ = "{version}"
class UntypedStorage:
    @staticmethod
    def _new_shared_cuda(*args):
        if len(args[1]) != 64 and args[1][0] > 2:
            raise RuntimeError("future version")
        return args[1]
'''


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real venv with the wheel installed and a stand-in for torch 2.11."""
    root = tmp_path_factory.mktemp("runtime")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
    site = next((root / "venv").glob("lib/python3.*/site-packages"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", build(root), site], check=True)
    package = site / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(TORCH.format(version="2.11.0"))
    return root / "venv"


def _python(venv: Path, code: str, **environment: str) -> str:
    """Run code in the venv and return what it printed."""
    done = subprocess.run(
        [venv / "bin" / "python", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", **environment},
        timeout=120,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


NEWER = 'b"\\x03c" + bytes(64)'


def test_the_hook_runs_when_torch_is_imported_and_not_before(venv: Path) -> None:
    code = f"""
    import sys
    import json, http.client  # what has nothing to do with torch
    assert not [name for name in sys.modules if name.startswith("lockstep_runtime")]
    import torch
    print(torch.UntypedStorage._new_shared_cuda(0, {NEWER})[0])
    """
    assert _python(venv, code) == "2"


def test_nothing_that_start_up_does_not_load_anyway_is_imported(venv: Path) -> None:
    code = "import sys; print(sorted(sys.modules))"
    with_package = set(_python(venv, code).strip("[]").split(", "))
    bare = venv.parent / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    without = set(_python(bare, code).strip("[]").split(", "))
    # encodings.utf_8_sig: since Python 3.13 the interpreter decodes every .pth file with it.
    assert with_package - without <= {"'encodings.utf_8_sig'"}


def test_the_switch_and_the_package_name_the_same_modules() -> None:
    switch = (SOURCE / "src" / "lockstep_runtime.pth").read_text()
    (names,) = re.findall(r"if name in (\(.*?\)) else", switch)
    assert set(ast.literal_eval(names)) == set(HOOKS)


def test_a_switch_that_is_read_twice_lays_one_shim(venv: Path) -> None:
    # Python 3.11 reads the .pth files of a venv twice by itself.
    code = f"""
    import site, sys
    site.addsitedir(next(path for path in sys.path if path.endswith("site-packages")), set())
    import lockstep_runtime
    assert len([finder for finder in sys.meta_path if lockstep_runtime.is_ours(finder)]) >= 2
    import torch
    shim = torch.UntypedStorage._new_shared_cuda
    (original,) = [cell.cell_contents for cell in shim.__closure__ if callable(cell.cell_contents)]
    print(shim(0, {NEWER})[0], original.__module__)
    """
    assert _python(venv, code) == "2 torch"


def test_the_module_keeps_its_loader_and_its_source(venv: Path) -> None:
    code = """
    import importlib, inspect, torch
    assert type(torch.__loader__).__name__ == "SourceFileLoader", torch.__loader__
    assert "exec_module" not in vars(torch.__loader__)
    assert "stand-in" in inspect.getsource(torch)
    importlib.reload(torch)
    from lockstep_runtime import loading
    print(loading.said["ipc"], getattr(torch.UntypedStorage._new_shared_cuda, "lockstep_runtime", False))
    """
    assert _python(venv, code).endswith("True")


def test_it_can_be_switched_off(venv: Path) -> None:
    code = "import torch; print(hasattr(torch.UntypedStorage._new_shared_cuda, 'lockstep_runtime'))"
    assert _python(venv, code) == "True"
    assert _python(venv, code, LOCKSTEP_RUNTIME="0") == "False"


def test_threads_that_import_torch_at_once_get_one_shim(venv: Path) -> None:
    code = f"""
    import threading
    barrier, seen = threading.Barrier(16), []
    def work():
        barrier.wait()
        import torch
        seen.append((torch.UntypedStorage._new_shared_cuda(0, {NEWER})[0], torch.UntypedStorage._new_shared_cuda))
    threads = [threading.Thread(target=work) for _ in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(len(seen), {{version for version, _ in seen}}, len({{id(function) for _, function in seen}}))
    """
    assert _python(venv, code) == "16 {2} 1"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_have_the_shim(venv: Path, tmp_path: Path, method: str) -> None:
    script = tmp_path / "children.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocessing, sys
        def work(queue):
            import torch
            queue.put(torch.UntypedStorage._new_shared_cuda(0, {NEWER})[0])
        if __name__ == "__main__":
            import torch
            context = multiprocessing.get_context("{method}")
            queue = context.Queue()
            child = context.Process(target=work, args=(queue,))
            child.start()
            print(queue.get(timeout=60))
            child.join()
        """)
    )
    done = subprocess.run([venv / "bin" / "python", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "2", done.stderr


def test_a_hook_that_fails_is_reported_and_the_import_goes_on(venv: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd" / "torch"
    odd.mkdir(parents=True)
    (odd / "__init__.py").write_text('__version__ = "2.11.0"\nVALUE = 7\n')  # no UntypedStorage
    done = subprocess.run(
        [venv / "bin" / "python", "-c", "import torch; print(torch.VALUE)"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(odd.parent)},
    )
    assert done.stdout.strip() == "7"
    assert "lockstep_runtime: the ipc hook failed: AttributeError" in done.stderr


def test_a_module_that_cannot_be_imported_fails_as_without_the_package(venv: Path) -> None:
    code = """
    try:
        import torch.distributed.checkpoint._async_process_executor
    except ModuleNotFoundError as error:
        print(error)
    """
    assert _python(venv, code) == "No module named 'torch.distributed'"


def test_the_report_names_each_hook_and_why(venv: Path) -> None:
    done = subprocess.run(
        [venv / "bin" / "python", "-m", "lockstep_runtime"], capture_output=True, text=True, check=False, timeout=120
    )
    assert "user: not needed: the user is" in done.stdout
    assert "ipc: active: torch 2.11.0 opens cudaMalloc handles of torch 2.13" in done.stdout, done.stderr
    assert "checkpoint: not active: torch.distributed.checkpoint._async_process_executor cannot be" in done.stdout
    assert "SCM_RIGHTS over a Unix socket: works between sibling processes" in done.stdout
    assert done.returncode == 0
