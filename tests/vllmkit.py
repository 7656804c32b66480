"""The real Python sources of published vLLM wheels, plain and patched, and single functions out of them.

The sources are read out of the wheels by range requests (2 to 12 MB of a 300 MB wheel) and kept in build/vllm.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.arch import Arch
from lockstep.index import find_wheel, open_wheel
from lockstep.paths import BUILD
from patchkit import APPLY, PATCHES

VERSIONS = ("0.25.1", "0.26.0", "0.27.0", "0.28.0", "0.29.0")
"""One of each release line that a patch is declared for; 0.25.1, 0.26.0 and 0.29.0 are those that images used."""

# What vllm.distributed.device_communicators.shm_broadcast imports, with torch built for the CPU.
_REQUIREMENTS = (
    "torch==2.13.0", "numpy", "pyzmq", "psutil", "cloudpickle", "msgspec", "packaging", "setuptools", "urllib3",
    "cachetools", "regex", "requests",
)  # fmt: skip


@cache
def plain(version: str) -> Path:
    """Return a folder that holds the Python files and the .dist-info of a vLLM wheel, as published."""
    folder = BUILD / "vllm" / version
    if not (folder / "complete").is_file():
        with open_wheel(find_wheel("vllm", version, Arch.X86_64, "3.13")) as archive:
            for name in archive.namelist():
                if name.endswith(".py") or ".dist-info/" in name:
                    target = folder / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
        (folder / "complete").touch()
    return folder


def make_venv(folder: Path, version: str) -> Path:
    """Make a venv of hard links to the plain sources, as two venvs of one image would share them."""
    site = folder / "lib" / "python3.13" / "site-packages"
    for source in plain(version).rglob("*"):
        if source.is_file() and "__pycache__" not in source.parts:
            target = site / source.relative_to(plain(version))
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)
    return site


@cache
def patched(version: str) -> Path:
    """Return the same sources as an image carries them: our patches applied by the helper of the build stage."""
    folder = BUILD / "vllm" / f"{version}-patched"
    site = folder / "lib" / "python3.13" / "site-packages"
    subprocess.run(["rm", "-rf", folder], check=True)
    make_venv(folder, version)
    words = [sys.executable, str(APPLY), "--venv", str(folder), "--patches", str(PATCHES), "--package", "vllm"]
    subprocess.run(words, check=True, capture_output=True)
    return site


@cache
def torch_python() -> str:
    """Return an interpreter with a CPU torch and what the message queue imports; made once, in build/torch-venv.

    LOCKSTEP_TORCH_PYTHON names another. The host's pip decides where torch comes from: on a machine whose index has
    no CPU wheel of torch 2.13.0, this downloads the one for CUDA.
    """
    given = os.environ.get("LOCKSTEP_TORCH_PYTHON")
    if given:
        return given
    folder = BUILD / "torch-venv"
    python = folder / "bin" / "python"
    if not (folder / "complete").is_file():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *_REQUIREMENTS], check=True, capture_output=True)
        (folder / "complete").touch()
    return str(python)


def extract(file: Path, names: list[str], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Execute single definitions out of a source file, without the file's imports, and return their namespace.

    names: `function`, `Class` or `Class.method`; a method comes out as a plain function under its own name, without
    its decorators. A name that the file lacks is left out, so that one test can run on plain and patched sources.
    """
    tree = ast.parse(file.read_text())
    wanted: list[ast.stmt] = [ast.ImportFrom("__future__", [ast.alias("annotations")], 0)]
    for name in names:
        body: list[ast.stmt] = tree.body
        *outer, last = name.split(".")
        for part in outer:
            body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == part)
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == last:
                node.decorator_list = [] if outer else node.decorator_list
                wanted.append(node)
    module = ast.fix_missing_locations(ast.Module(wanted, []))
    found = dict(namespace)
    exec(compile(module, str(file), "exec"), found)
    return found
