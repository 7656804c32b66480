"""Run hooks right after a module's own code, without the module noticing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType

# What each hook said about itself, by hook: read by `python -m lockstep_runtime`.
said: dict[str, str] = {}


def run(module: ModuleType, hook: str, function: str) -> None:
    """Run one hook on an imported module. A hook that fails is reported on stderr and never breaks the import."""
    try:
        said[hook] = getattr(importlib.import_module(f"lockstep_runtime.{hook}"), function)(module)
    except Exception as error:
        said[hook] = f"failed: {type(error).__name__}: {error}"
        print(f"lockstep_runtime: the {hook} hook failed: {type(error).__name__}: {error}", file=sys.stderr)


def follow(spec: ModuleSpec, hooks: tuple[tuple[str, str], ...]) -> None:
    """Have the hooks run when the spec's loader has executed the module.

    The loader keeps its class and its other methods, so that inspect, importlib.resources and pickle see what they
    would see without this package; its exec_module is covered on the instance, and uncovered by its first call.
    """
    loader = spec.loader
    execute: Callable[[ModuleType], None] | None = getattr(loader, "exec_module", None)
    if loader is None or execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        if getattr(loader, "__dict__", {}).get("exec_module") is exec_module:
            del loader.exec_module
        execute(module)
        if module.__name__ == spec.name:
            for hook, function in hooks:
                run(module, hook, function)

    loader.exec_module = exec_module  # type: ignore[method-assign]
