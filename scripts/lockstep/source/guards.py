"""Code that expects a thing to be missing: try/except, version tests, hasattr. What stands there is not judged."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from lockstep.source.classes import last_name
from lockstep.source.model import Module, is_type_checking
from lockstep.source.nodes import walk

# What each guard excuses: a failed import, a missing attribute, a call that does not fit.
IMPORT, ATTRIBUTE, CALL = "import", "attribute", "call"
ALL = frozenset({IMPORT, ATTRIBUTE, CALL})
_CAUGHT = {
    "ImportError": {IMPORT},
    "ModuleNotFoundError": {IMPORT},
    "AttributeError": {ATTRIBUTE},
    "TypeError": {CALL},
    "ValidationError": {CALL},
    "Exception": set(ALL),
    "BaseException": set(ALL),
}
_VERSION = re.compile(r"version|(^|_)(ge|gt|le|lt)_\d|_v?\d+_\d+", re.IGNORECASE)
_NUMBER = re.compile(r"^v?\d+\.\d+[\w.+]*$")
_PROBES = re.compile(r"^(hasattr|getattr|find_spec|signature|getfullargspec|is_.*available|has_.*|importorskip)$")
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Probes:
    """What a file asks about before it uses it: attribute and argument names, and flags that hold an answer."""

    names: frozenset[str]
    flags: frozenset[str]


NONE = Probes(frozenset(), frozenset())
_known: dict[Module, Probes] = {}


def probes(module: Module) -> Probes:
    """Return the names that a file probes (`hasattr(x, "n")`, `"n" in signature(f).parameters`) and its flags."""
    if module not in _known:
        _known[module] = _read(module)
    return _known[module]


def _read(module: Module) -> Probes:
    names: set[str] = set()
    flags: set[str] = set()
    for node in walk(module.tree):
        if isinstance(node, ast.Call) and last_name(node.func) in {"hasattr", "getattr"} and len(node.args) >= 2:
            if last_name(node.func) == "hasattr" or len(node.args) == 3:
                names |= _strings(node.args[1])
        elif isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            names |= _strings(node.left)
        elif isinstance(node, ast.Assign) and _asks(node.value, frozenset()):
            flags |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Try) and any(guarded_by(node)):
            for part in node.handlers:
                for item in part.body:
                    if isinstance(item, ast.Assign):
                        flags |= {target.id for target in item.targets if isinstance(target, ast.Name)}
    return Probes(frozenset(names), frozenset(flags))


def _strings(expr: ast.expr) -> set[str]:
    return {expr.value} if isinstance(expr, ast.Constant) and isinstance(expr.value, str) else set()


def _asks(test: ast.expr, flags: frozenset[str]) -> bool:
    """Whether a condition asks for a version or for a thing's presence."""
    for node in walk(test):
        if isinstance(node, ast.Name) and (node.id in flags or _VERSION.search(node.id)):
            return True
        if isinstance(node, ast.Attribute) and _VERSION.search(node.attr):
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NUMBER.match(node.value):
            return True  # `is_torch_equal("2.9.0")`
        if isinstance(node, ast.Call) and _PROBES.match(last_name(node.func)):
            return True
    return False


def of_test(test: ast.expr, known: Probes) -> frozenset[str]:
    """Return what an `if` excuses in both its branches."""
    return ALL if is_type_checking(test) or _asks(test, known.flags) else frozenset()


def guarded_by(node: ast.Try | ast.TryStar) -> frozenset[str]:
    """Return what a try's handlers excuse in its body; one that raises again or ends the program excuses nothing."""
    found: set[str] = set()
    for handler in node.handlers:
        if not gives_up(handler):
            found |= caught(handler)
    return frozenset(found)


def caught(handler: ast.ExceptHandler) -> set[str]:
    """Return the kinds of failure that a handler catches."""
    if handler.type is None:
        return set(ALL)
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    found: set[str] = set()
    for item in types:
        found |= _CAUGHT.get(last_name(item), set())
    return found


def gives_up(handler: ast.ExceptHandler) -> bool:
    """Whether a handler always ends in an error: its last statement raises or exits."""
    last = handler.body[-1]
    if isinstance(last, ast.Raise):
        return True
    return (
        isinstance(last, ast.Expr)
        and isinstance(last.value, ast.Call)
        and last_name(last.value.func)
        in {
            "exit",
            "_exit",
        }
    )


def of_with(node: ast.With | ast.AsyncWith) -> frozenset[str]:
    """Return what `contextlib.suppress(…)` and `pytest.raises(…)` excuse in their body."""
    found: set[str] = set()
    for item in node.items:
        expr = item.context_expr
        if isinstance(expr, ast.Call) and last_name(expr.func) in {"suppress", "raises"}:
            for arg in expr.args:
                found |= _CAUGHT.get(last_name(arg), set())
    return frozenset(found)


def leaves(node: ast.If) -> bool:
    """Whether an `if` without else ends what comes after it in its block: then the rest stands under its test."""
    return bool(node.body) and isinstance(node.body[-1], _LEAVES) and not node.orelse
