"""Worker extensions that the code itself names: `worker_extension_cls="pkg.mod.Class"` tells vLLM what to mix in."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from lockstep.source.config import WorkerExtension
from lockstep.source.model import Module
from lockstep.source.nodes import walk
from lockstep.source.world import World

# vLLM's setting (config/parallel.py), and the class that it is mixed into on CUDA (platforms/cuda.py).
_SETTING = "worker_extension_cls"
_TARGET = "vllm.v1.worker.gpu_worker.Worker"


def named_extensions(world: World, modules: Iterable[Module]) -> list[WorkerExtension]:
    """Return the extensions of the tree that its files give to vLLM by name; none for any other package."""
    if world.class_of(_TARGET) is None:
        return []
    found: dict[str, WorkerExtension] = {}
    for module in modules:
        if _SETTING.encode() in module.text:
            for name in _named(module.tree):
                info = world.class_of(name) if not world.is_ours(name) else None
                if info is not None:
                    found.setdefault(name, WorkerExtension(cls=name, target=_TARGET))
    return list(found.values())


def _named(tree: ast.Module) -> Iterator[str]:
    for node in walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.keyword) and node.arg == _SETTING:
            values = [node.value]
        elif isinstance(node, ast.Dict):
            values = [v for k, v in zip(node.keys, node.values, strict=True) if _text(k) == _SETTING]
        elif isinstance(node, ast.Assign):
            keys = [t.slice for t in node.targets if isinstance(t, ast.Subscript)]
            values = [node.value] if any(_text(key) == _SETTING for key in keys) else []
        for value in values:
            for part in walk(value) if value is not None else ():
                # Either branch of a condition may be the one.
                text = _text(part)
                if text and "." in text:
                    yield text


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
