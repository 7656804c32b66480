"""Classes as they are written: their real method resolution order, their members, and who may add to them."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from lockstep.source.model import Binding, Function, Module, Names, collect
from lockstep.source.nodes import children, walk
from lockstep.source.values import (
    UNKNOWN,
    ClassInfo,
    ClassV,
    DataV,
    External,
    FuncV,
    InstV,
    Member,
    SuperV,
    Value,
)

if TYPE_CHECKING:
    from lockstep.source.world import World

# Bases from elsewhere that add no attribute which code would call by name.
PLAIN = {
    "builtins.object",
    "abc.ABC",
    "typing.Protocol",
    "typing.Generic",
    "typing_extensions.Protocol",
    "typing_extensions.Generic",
}
# Class decorators that leave the class's own attributes as they are written.
_KEEPING = {"dataclass", "final", "runtime_checkable", "total_ordering", "config", "unique", "deprecated"}
# What every object has (`dir(object())`), and what every class has besides.
OBJECT = frozenset(dir(object)) | {"__dict__", "__module__", "__name__", "__qualname__", "__mro__", "__annotations__"}
OBJECT |= {"__bases__", "__weakref__", "__slots__", "__subclasses__", "__dataclass_fields__", "__wrapped__", "mro"}
_PROPERTY = {"property", "cached_property", "cached_class_property", "classproperty", "setter", "getter", "deleter"}


def last_name(expr: ast.expr) -> str:
    """Return the last part of a decorator or callee as it is written: `a.b.c(…)` gives c."""
    if isinstance(expr, ast.Call):
        return last_name(expr.func)
    if isinstance(expr, ast.Attribute):
        return expr.attr
    return expr.id if isinstance(expr, ast.Name) else ""


def decorators(node: Function | ast.ClassDef) -> list[str]:
    """Return the last names of a definition's decorators, outermost first."""
    return [last_name(item) for item in node.decorator_list]


@lru_cache(maxsize=1024)
def outside_names(dotted: str) -> frozenset[str] | None:
    """Return the attributes of a base class that is built in, an enum or a pydantic model; None for any other."""
    module, _, name = dotted.rpartition(".")
    module = {"typing_extensions": "typing", "pydantic.main": "pydantic"}.get(module, module)
    if dotted == "typing.NamedTuple":
        return frozenset(dir(tuple)) | {"_asdict", "_fields", "_field_defaults", "_make", "_replace"}
    # Classes written in Python set attributes on their instances, which `dir` does not show; these few do not.
    if module not in {"builtins", "enum", "pydantic", "collections", "collections.abc", "typing"}:
        return None
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    return frozenset(dir(found)) | frozenset(dir(type(found)))


class Classes:
    """Questions about classes within one world; answers are kept."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._infos: dict[tuple[Module, ast.ClassDef], ClassInfo] = {}
        self._mro: dict[ClassInfo, tuple[tuple[ClassInfo, ...], tuple[str, ...]]] = {}
        self._own: dict[ClassInfo, dict[str, list[Member]]] = {}
        self._open: dict[ClassInfo, bool] = {}

    def info(self, module: Module, node: ast.ClassDef, outer: str = "") -> ClassInfo:
        """Return the one record of a class definition."""
        key = (module, node)
        if key not in self._infos:
            self._infos[key] = ClassInfo(node, module, outer)
        return self._infos[key]

    # Order of bases

    def bases(self, info: ClassInfo) -> list[ClassInfo | str]:
        """Return the bases in order: classes that are read, and the dotted names of others ("?" where unknown)."""
        found: list[ClassInfo | str] = []
        for expr in info.node.bases:
            values = [v for v in self._world.expression(info.module, expr) if v != UNKNOWN]
            if len(values) == 1 and isinstance(values[0], ClassV):
                found.append(values[0].info)
            elif len(values) == 1 and isinstance(values[0], External):
                found.append(values[0].name)
            else:
                found.append("?")
        return found

    def mro(self, info: ClassInfo) -> tuple[tuple[ClassInfo, ...], tuple[str, ...]]:
        """Return the classes in method resolution order (C3), and the names of bases that are not read, in order."""
        if info not in self._mro:
            self._mro[info] = ((info,), ("?",))  # a class among its own bases
            bases = self.bases(info)
            inner = [base for base in bases if isinstance(base, ClassInfo)]
            outside = [base for base in bases if isinstance(base, str) and base not in PLAIN]
            lists = []
            for base in inner:
                order, more = self.mro(base)
                lists.append(list(order))
                outside += more
            merged = _merge([*lists, inner])
            self._mro[info] = ((info, *merged), tuple(dict.fromkeys(outside)))
        return self._mro[info]

    # Members

    def own(self, info: ClassInfo) -> dict[str, list[Member]]:
        """Return what a class itself defines, by name: its body, and `self.x = …` in any of its methods."""
        if info not in self._own:
            found: dict[str, list[Member]] = {}
            self._own[info] = found
            names = Names()
            collect(info.node.body, info.module.absolute, names)
            for name, bindings in names.table.items():
                for binding in bindings:
                    found.setdefault(name, []).append(_body_member(name, binding, info))
            for function in _methods(info.node):
                for member in _assigned(function, info):
                    found.setdefault(member.name, []).append(member)
        return self._own[info]

    def find(self, info: ClassInfo, name: str, *, skip_first: bool = False) -> list[Member]:
        """Return the members of that name of the first class along the MRO that has one; stubs' notes count."""
        order, _ = self.mro(info)
        late: list[Member] = []
        for item in order[1:] if skip_first else order:
            members = self.own(item).get(name, [])
            solid = [m for m in members if m.kind != "note" or item.module.is_stub]
            if solid:
                return solid if not late else [*late, *solid]
            late += members
        return late

    def all_names(self, info: ClassInfo) -> dict[str, Member]:
        """Return every member along the MRO, the first found of each name."""
        found: dict[str, Member] = {}
        for item in self.mro(info)[0]:
            for name, members in self.own(item).items():
                best = min(members, key=lambda member: member.kind in {"instance", "note"})
                if name not in found or (found[name].kind == "note" and best.kind != "note"):
                    found[name] = best
        return found

    def is_open(self, info: ClassInfo) -> bool:
        """Whether instances may have attributes that reading does not show."""
        if info not in self._open:
            order, outside = self.mro(info)
            self._open[info] = any(outside_names(name) is None for name in outside) or any(map(self._adds, order))
        return self._open[info]

    def _adds(self, info: ClassInfo) -> bool:
        own = self.own(info)
        if "__getattr__" in own or "__getattribute__" in own or "*" in own:
            return True
        if any(
            item.arg == "metaclass" and last_name(item.value) not in {"ABCMeta", "EnumMeta"}
            for item in info.node.keywords
        ):
            return not info.module.is_stub
        return any(name not in _KEEPING for name in decorators(info.node))

    # Attributes as values

    def attribute(self, value: ClassV | InstV | SuperV, name: str) -> tuple[Value, ...]:
        """Return what `value.name` may stand for; nothing where the class is fully read and does not have it."""
        members = self.find(value.info, name, skip_first=isinstance(value, SuperV))
        if isinstance(value, ClassV):
            # A class has no instance attributes; a plain note without a value may be a dataclass field: no default.
            members = [m for m in members if m.kind != "instance"] or members
        if not members:
            if name in OBJECT or self.is_open(value.info):
                return (UNKNOWN,)
            _, outside = self.mro(value.info)
            return (UNKNOWN,) if any(name in (outside_names(base) or ()) for base in outside) else ()
        return self._as_values(value, members)

    def _as_values(self, value: ClassV | InstV | SuperV, members: list[Member]) -> tuple[Value, ...]:
        functions = [m.node for m in members if m.kind == "method" and isinstance(m.node, Function)]
        found: list[Value] = []
        for member in members:
            module = member.owner.module
            if member.kind == "method" and isinstance(member.node, Function):
                if member.node is not functions[-1]:
                    continue
                names = decorators(member.node)
                bound = "staticmethod" not in names and (not isinstance(value, ClassV) or "classmethod" in names)
                if member.node.name in {"__new__", "__init_subclass__", "__class_getitem__"}:
                    bound = True
                found.append(FuncV(member.node, module, member.owner, bound, tuple(functions)))
            elif member.kind == "class" and isinstance(member.node, ast.ClassDef):
                found.append(ClassV(self.info(module, member.node, member.owner.name)))
            elif member.kind == "property" and isinstance(member.node, Function):
                found.append(DataV(module, None, member.node.returns) if not isinstance(value, ClassV) else UNKNOWN)
            elif member.kind == "import":
                found.append(UNKNOWN)
            else:
                found.append(DataV(module, member.value, member.annotation, member.owner, member.method))
        return tuple(found) or (UNKNOWN,)


def _merge(lists: list[list[ClassInfo]]) -> list[ClassInfo]:
    """Return the C3 merge of the orders; where there is none (an error at import), plain left to right."""
    merged: list[ClassInfo] = []
    work = [list(item) for item in lists if item]
    while work:
        for candidate in (item[0] for item in work):
            if not any(candidate in item[1:] for item in work):
                break
        else:
            rest = [info for item in work for info in item]
            return [*merged, *dict.fromkeys(info for info in rest if info not in merged)]
        merged.append(candidate)
        work = [left for item in work if (left := [info for info in item if info is not candidate])]
    return merged


def _body_member(name: str, binding: Binding, info: ClassInfo) -> Member:
    node = binding.node
    if isinstance(node, Function):
        kind = "property" if any(item in _PROPERTY for item in decorators(node)) else "method"
        return Member(name, kind, node, info)
    if isinstance(node, ast.ClassDef):
        return Member(name, "class", node, info)
    if binding.kind in {"import", "from"}:
        return Member(name, "import", node, info)
    kind = "note" if binding.kind == "note" else "value"
    return Member(name, kind, node, info, binding.value, binding.annotation)


def _methods(node: ast.ClassDef) -> Iterator[Function]:
    """Yield the functions of a class body, also those under an if or a try."""
    work: list[ast.stmt] = list(node.body)
    while work:
        item = work.pop(0)
        if isinstance(item, Function):
            yield item
        elif not isinstance(item, ast.ClassDef):
            work += [child for child in children(item) if isinstance(child, ast.stmt)]


def _assigned(function: Function, info: ClassInfo) -> Iterator[Member]:
    """Yield the attributes that a method gives its first argument; "*" stands for names that cannot be told."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    if not arguments or "staticmethod" in decorators(function):
        return
    first = arguments[0].arg
    kind = "value" if "classmethod" in decorators(function) else "instance"

    def on_self(expr: ast.expr) -> bool:
        return isinstance(expr, ast.Name) and expr.id == first

    done: set[ast.expr] = set()
    for node in walk(function):  # a statement comes before its targets
        if isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Store) and on_self(node.value) and node not in done:
                yield Member(node.attr, kind, node, info, method=function)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and on_self(target.value):
                    done.add(target)
                    yield Member(target.attr, kind, target, info, node.value, method=function)
        elif isinstance(node, ast.AnnAssign):
            if isinstance(node.target, ast.Attribute) and on_self(node.target.value):
                done.add(node.target)
                yield Member(node.target.attr, kind, node.target, info, node.value, node.annotation, function)
        elif isinstance(node, ast.Call):
            name = last_name(node.func)
            if name in {"setattr", "__setattr__"} and len(node.args) >= 2 and on_self(node.args[0]):
                key = node.args[1]
                text = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else "*"
                yield Member(text, kind, node, info, method=function)
            elif name == "update" and isinstance(node.func, ast.Attribute) and _is_dict_of(node.func.value, first):
                yield Member("*", kind, node, info, method=function)


def _is_dict_of(expr: ast.expr, first: str) -> bool:
    if isinstance(expr, ast.Call):
        return last_name(expr) == "vars" and any(isinstance(arg, ast.Name) and arg.id == first for arg in expr.args)
    return (
        isinstance(expr, ast.Attribute)
        and expr.attr == "__dict__"
        and isinstance(expr.value, ast.Name)
        and (expr.value.id == first)
    )
