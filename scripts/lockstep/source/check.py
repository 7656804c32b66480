"""The pass over downstream files: imports, attributes and calls against one version of the package."""

from __future__ import annotations

import ast
import copy
import difflib
import re
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from lockstep.source import guards
from lockstep.source.calling import Misfit, Signature, fit
from lockstep.source.classes import OBJECT, last_name
from lockstep.source.findings import Finding
from lockstep.source.imports import failed_import, import_finding, module_finding
from lockstep.source.infer import Infer
from lockstep.source.nodes import walk
from lockstep.source.signature import Signatures
from lockstep.source.values import UNKNOWN, ClassInfo, ClassV, External, FuncV, InstV, ModuleV, SuperV, Value
from lockstep.source.walk import Place
from lockstep.source.world import World


class State(Enum):
    """What became of an attribute: found; not found where more may be than is written; not found where all is read."""

    FOUND = "found"
    OPEN = "open"
    MISSING = "missing"


@dataclass(frozen=True)
class Use:
    """An attribute that the downstream code reads, sets or patches on something of the package."""

    node: ast.AST
    place: Place
    on: Value
    name: str
    state: State
    store: bool = False


@dataclass(frozen=True)
class Call:
    """A call of something of the package, with the signatures that it may meet."""

    node: ast.Call
    place: Place
    value: Value
    signatures: tuple[Signature, ...]


@dataclass
class Seen:
    """What one pass over the tree at one version found."""

    imports: dict[tuple[ast.AST, str], Finding] = field(default_factory=dict)
    uses: dict[tuple[ast.AST, str], Use] = field(default_factory=dict)
    calls: dict[ast.Call, Call] = field(default_factory=dict)
    classes: dict[ast.ClassDef, ClassInfo] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    failed: set[tuple[str, str]] = field(default_factory=set)


class Uses:
    """The visitor that fills a Seen. Only what reaches the package is recorded."""

    def __init__(self, world: World, infer: Infer, signatures: Signatures) -> None:
        self._world = world
        self._infer = infer
        self._signatures = signatures
        self.seen = Seen()

    # Imports

    def on_import(self, node: ast.Import | ast.ImportFrom, place: Place) -> None:
        for module, name in self._imported(node, place):
            self.seen.counts["imports"] += 1
            if not failed_import(self._world, module, name):
                if name and self._only_typed(module, name) and not place.guards and place.fallback_of is None:
                    self._record(node, place, module, name)
                continue
            self.seen.failed.add((place.module.path, f"{module}.{name}" if name else module))
            if self._excused(place):
                self.seen.counts["guarded imports that fail"] += 1
            else:
                self._record(node, place, module, name)

    def _record(self, node: ast.AST, place: Place, module: str, name: str) -> None:
        line = getattr(node, "lineno", 0)
        self.seen.imports[(node, f"{module}.{name}")] = import_finding(
            self._world, place.module.path, line, module, name
        )

    def _imported(self, node: ast.Import | ast.ImportFrom, place: Place) -> list[tuple[str, str]]:
        if isinstance(node, ast.Import):
            return [(alias.name, "") for alias in node.names if self._world.is_ours(alias.name)]
        module = place.module.absolute(node.module, node.level)
        if not self._world.is_ours(module):
            return []
        return [(module, "" if alias.name == "*" else alias.name) for alias in node.names]

    def _excused(self, place: Place) -> bool:
        if guards.IMPORT in place.guards:
            return True
        if place.fallback_of is None:
            return False
        # A fallback runs only where what it stands in for fails.
        for statement in place.fallback_of:
            for node in walk(statement):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    tried = self._imported(node, place)
                    if not tried or any(failed_import(self._world, module, name) for module, name in tried):
                        return guards.IMPORT in place.fallback_guards
        return True

    def _only_typed(self, module: str, name: str) -> bool:
        loaded = self._world.module(module)
        if loaded is None or loaded.is_stub or loaded.lazy is not None or loaded.dynamic:
            return False
        return not self._world.resolve(loaded, name)

    # Attributes

    def on_attribute(self, node: ast.Attribute, place: Place) -> None:
        store = isinstance(node.ctx, ast.Store)
        for value in self._receivers(node.value, place):
            self._use(node, place, value, node.attr, store=store)

    def _receivers(self, expr: ast.expr, place: Place) -> list[Value]:
        values = self._infer.of(place.scope, expr)
        return list(values) if len(values) == 1 and self._reaches(values[0]) else []

    def _reaches(self, value: Value) -> bool:
        """Whether a value belongs to the package: itself, or through a base class."""
        if isinstance(value, ModuleV):
            return self._world.is_ours(value.name)
        if isinstance(value, ClassV | InstV | SuperV):
            return any(item.module.owner == "package" for item in self._world.classes.mro(value.info)[0])
        if isinstance(value, FuncV):
            return value.module.owner == "package"
        return False

    def _use(self, node: ast.AST, place: Place, value: Value, name: str, *, store: bool) -> None:
        if not isinstance(value, ModuleV | ClassV | InstV | SuperV) or (name.startswith("__") and name in OBJECT):
            return
        self.seen.counts["attributes"] += 1
        if guards.ATTRIBUTE in place.guards or name in place.probed:
            self.seen.counts["guarded attributes"] += 1
            return
        if isinstance(value, ModuleV) and (place.module.path, f"{value.name}.{name}") in self.seen.failed:
            return  # the import says it already
        state = self._state(value, name)
        if state is not State.FOUND and place.module.silences(getattr(node, "lineno", 0), "attr-defined"):
            self.seen.counts["attributes marked attr-defined"] += 1
            return
        self.seen.uses[(node, name)] = Use(node, place, value, name, state, store)

    def _state(self, value: ModuleV | ClassV | InstV | SuperV, name: str) -> State:
        found = self._world.attribute(value, name)
        if not found:
            return State.MISSING
        if found != (UNKNOWN,):
            return State.FOUND
        if isinstance(value, ModuleV):
            loaded = self._world.module(value.name)
            known = loaded is not None and name in loaded.names.table
        else:
            known = bool(self._world.classes.find(value.info, name))
        return State.FOUND if known else State.OPEN

    # Calls

    def on_call(self, node: ast.Call, place: Place) -> None:
        name = last_name(node.func)
        if name in {"patch", "object", "setattr", "delattr", "getattr", "import_module", "partial"} and node.args:
            self._by_name(name, node, place)
        values = self._infer.of(place.scope, node.func)
        if len(values) != 1 or not self._reaches(values[0]):
            return
        value = values[0]
        if (
            isinstance(value, FuncV)
            and isinstance(node.func, ast.Attribute)
            and self._may_be_overridden(node.func, place)
        ):
            self.seen.counts["calls through classes with unread bases"] += 1
            return
        self._call(node, place, value)

    def _call(self, node: ast.Call, place: Place, value: Value) -> None:
        self.seen.counts["calls"] += 1
        if guards.CALL in place.guards:
            self.seen.counts["guarded calls"] += 1
            return
        if place.module.silences(node.lineno, "call-arg"):
            self.seen.counts["calls marked call-arg"] += 1
            return
        signatures = self._signatures.of(value)
        if not signatures:
            if not isinstance(value, InstV):
                self.seen.counts["calls of unknown signature"] += 1
            return
        self.seen.calls[node] = Call(self._spread(node, place), place, value, tuple(signatures))

    def _spread(self, node: ast.Call, place: Place) -> ast.Call:
        """Add the keywords of a dict that the same function writes out: `settings = {…}`, then `f(**settings)`."""
        more: list[ast.keyword] = []
        for item in node.keywords:
            if item.arg is None and isinstance(item.value, ast.Name):
                bindings = place.scope.names.table.get(item.value.id, [])
                taken = re.search(
                    rb"\b%b\.(pop|popitem|clear)\(|\bdel +%b\[" % ((item.value.id.encode(),) * 2), place.module.text
                )
                if len(bindings) == 1 and bindings[0].value is not None and not taken:
                    more += _entries(bindings[0].value)
        given = {item.arg for item in node.keywords}
        more = [item for item in more if item.arg not in given]
        if not more:
            return node
        wider = copy.copy(node)
        wider.keywords = [*node.keywords, *more]
        return wider

    def _may_be_overridden(self, callee: ast.Attribute, place: Place) -> bool:
        """Whether a base that is not read comes first, and so may have the method instead."""
        values = self._infer.of(place.scope, callee.value)
        for value in values:
            if isinstance(value, ClassV | InstV | SuperV):
                for base in self._world.classes.bases(value.info):
                    if isinstance(base, ClassInfo):
                        break
                    if not base.startswith(("abc.", "typing.", "builtins.")):
                        return True
        return False

    def _by_name(self, name: str, node: ast.Call, place: Place) -> None:
        """Calls that name a thing of the package in a string: patches, getattr, import_module, and partial."""
        first = node.args[0]
        text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
        flags = {item.arg: item.value for item in node.keywords}
        lenient = _is(flags.get("create"), True) or _is(flags.get("raising"), False)
        if name == "partial":
            values = self._infer.of(place.scope, node.func)
            targets = self._infer.of(place.scope, first)
            if values == (External("functools.partial"),) and len(targets) == 1 and self._reaches(targets[0]):
                inner = copy.copy(node)
                inner.func, inner.args = first, node.args[1:]
                inner.keywords = [*node.keywords, ast.keyword(arg=None, value=first)]  # more may follow: `**…`
                self._call(inner, place, targets[0])
            return
        if text and self._world.is_ours(text) and "." in text:
            if name in {"patch", "setattr", "import_module"} and not lenient and not self._world.symbol(text):
                self.seen.counts["names in strings"] += 1
                if guards.IMPORT not in place.guards and guards.ATTRIBUTE not in place.guards:
                    self.seen.imports[(node, text)] = module_finding(
                        self._world, place.module.path, node.lineno, text, name
                    )
            return
        second = node.args[1] if len(node.args) > 1 else None
        if isinstance(second, ast.Constant) and isinstance(second.value, str) and name in _BY_STRING:
            if name == "getattr" and len(node.args) > 2:
                return
            # `setattr` of the language may add a thing; `patch.object` and `monkeypatch.setattr` refuse a new one.
            plain = isinstance(node.func, ast.Name) and name == "setattr"
            for value in self._receivers(first, place):
                if not lenient:
                    self._use(node, place, value, second.value, store=plain)

    # Classes

    def on_class(self, info: ClassInfo, place: Place) -> None:
        if any(item.module.owner == "package" for item in self._world.classes.mro(info)[0][1:]):
            self.seen.classes[info.node] = info


_BY_STRING = {"object", "setattr", "delattr", "getattr"}


def _entries(value: ast.expr) -> list[ast.keyword]:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict" and not value.args:
        return [item for item in value.keywords if item.arg is not None]
    if isinstance(value, ast.Dict):
        return [
            ast.keyword(arg=key.value, value=item)
            for key, item in zip(value.keys, value.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
    return []


def _is(expr: ast.expr | None, value: object) -> bool:
    return isinstance(expr, ast.Constant) and expr.value is value


def call_findings(call: Call) -> list[Finding]:
    """Return why a call does not fit any of its signatures; the nearest one is spoken of."""
    best: list[Misfit] | None = None
    signature = call.signatures[0]
    for candidate in call.signatures:
        misfits = fit(candidate, call.node)
        if best is None or len(misfits) < len(best):
            best, signature = misfits, candidate
    name = ast.unparse(call.node.func)
    return [_misfit(call, signature, name, item) for item in best or []]


def _misfit(call: Call, signature: Signature, name: str, misfit: Misfit) -> Finding:
    text = signature.text()
    short = text if len(text) <= 160 else f"{text[:157]}…"
    kind = "field" if signature.model else "parameter"
    what = {
        "unknown": f"{name}() takes no {kind} `{misfit.name}`",
        "dropped": f"{name}() has no field `{misfit.name}` and ignores it",
        "missing": f"{name}() now needs `{misfit.name}`, which is not given",
        "many": f"{name}() takes {misfit.name} positional arguments, {len(call.node.args)} are given",
        "twice": f"{name}() gets `{misfit.name}` by place and by name",
    }[misfit.kind]
    if misfit.kind == "unknown" and signature.forwards_to:
        what += f" (it hands its keywords on to {signature.forwards_to})"
    fix = f"pass `{misfit.name}`" if misfit.kind == "missing" else f"drop it: it takes ({short})"
    if misfit.kind in {"unknown", "dropped"}:
        near = difflib.get_close_matches(misfit.name, signature.names(), n=1, cutoff=0.75)
        if near:
            fix = f"perhaps it is now `{near[0]}`: it takes ({short})"
        elif signature.forwards_to:
            fix = "drop it, or see what took its place"
    line = next((k.value.lineno for k in call.node.keywords if k.arg == misfit.name), call.node.lineno)
    return Finding("call", call.place.module.path, line, f"{name}({misfit.name})", what, fix)
