"""Lay out the CUDA compiler's wheels as the toolkit that every build system expects at CUDA_HOME."""

from __future__ import annotations

import re
from pathlib import Path


def lay_out(site: Path, home: Path) -> bool:
    """Make `home` out of the wheels in `site`/nvidia; return False where they hold no nvcc.

    The wheels lack two things that builds take for granted: a `lib64` with the linker's names (libcudart.so beside
    libcudart.so.13), and the headers of cuDNN, NCCL and others in one include folder.
    """
    roots = sorted(path for path in (site / "nvidia").glob("*") if path.is_dir())
    compiler = next((root for root in roots if (root / "bin/nvcc").is_file()), None)
    if compiler is None:
        return False
    roots = [compiler, *(root for root in roots if root != compiler)]
    home.mkdir(parents=True)
    (home / "nvvm").symlink_to(compiler / "nvvm")
    (home / "bin").mkdir()
    for tool in sorted((compiler / "bin").iterdir()):
        if tool.name != "nvcc":
            (home / "bin" / tool.name).symlink_to(tool)
    # nvcc finds its other parts from the place that it was started at, so a link would mislead it.
    (home / "bin/nvcc").write_text(f'#!/bin/sh\nexec {compiler}/bin/nvcc "$@"\n')
    (home / "bin/nvcc").chmod(0o755)
    for root in roots:
        _merge(root / "include", home / "include")
        _libraries(root / "lib", home / "lib64")
    (home / "lib").symlink_to("lib64")
    return True


def _merge(source: Path, target: Path) -> None:
    """Link everything below `source` into `target`; of two files with one name the first stays."""
    if not source.is_dir():
        return
    target.mkdir(exist_ok=True)
    for item in sorted(source.iterdir()):
        place = target / item.name
        if not place.exists():
            place.symlink_to(item)
        elif place.is_dir() and item.is_dir():
            if place.is_symlink():
                first = place.readlink()
                place.unlink()
                _merge(first, place)
            _merge(item, place)


def _libraries(source: Path, target: Path) -> None:
    if not source.is_dir():
        return
    target.mkdir(exist_ok=True)
    for item in sorted(path for path in source.iterdir() if path.is_file()):
        names = {item.name}
        if match := re.match(r"(lib[^/]+?\.so)\.\d", item.name):
            names.add(match[1])
        for name in names:
            if not (target / name).exists():
                (target / name).symlink_to(item)
