"""What a function or a class takes when it is called: read from its definition, its decorators and its bases."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.source.calling import Parameter, Signature, from_arguments
from lockstep.source.classes import PLAIN, decorators, last_name
from lockstep.source.fields import extra_of, is_name, is_true, own_fields, text_of, validates_first
from lockstep.source.model import Function, Module
from lockstep.source.nodes import children, walk
from lockstep.source.values import UNKNOWN, ClassInfo, ClassV, FuncV, Value

if TYPE_CHECKING:
    from lockstep.source.world import World

# Decorators after which a function still takes what it is written to take.
KEEPS = {
    "staticmethod", "classmethod", "abstractmethod", "override", "final", "overload", "wraps", "no_type_check",
    "no_grad", "inference_mode", "enable_grad", "cache", "lru_cache", "deprecated", "contextmanager",
    "asynccontextmanager", "unused", "export", "set_module", "register_fake",
}  # fmt: skip
_MODEL_ROOTS = {"pydantic.BaseModel", "pydantic.main.BaseModel"}
_STRUCT_ROOTS = {"msgspec.Struct"}


class Signatures:
    """Signatures within one world; None means that nothing can be said, so that no call is judged."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kept: dict[tuple[ast.AST, bool], Signature | None] = {}
        self._busy: set[tuple[ast.AST, bool]] = set()

    def of(self, value: Value) -> list[Signature] | None:
        """Return the signatures any of which a call of the value may use, or None."""
        if isinstance(value, FuncV):
            found = [self._function(value, node) for node in self._candidates(value)]
            return [item for item in found if item] if all(found) else None
        if isinstance(value, ClassV):
            return self.constructor(value.info)
        return None

    def _candidates(self, value: FuncV) -> list[Function]:
        overloads = [node for node in value.all if "overload" in decorators(node)]
        solid = [node for node in value.all if node not in overloads]
        # At run time the implementation decides; a stub has only its overloads.
        return solid or overloads or [value.node]

    def _function(self, value: FuncV, node: Function) -> Signature | None:
        key = (node, value.bound)
        if key in self._kept:
            return self._kept[key]
        if key in self._busy:
            return None
        self._busy.add(key)
        try:
            self._kept[key] = self._read(value, node)
        finally:
            self._busy.discard(key)
        return self._kept[key]

    def _read(self, value: FuncV, node: Function) -> Signature | None:
        if not all(self._keeps(value.module, item) for item in node.decorator_list):
            return None
        # `__new__` gets the class, whether or not it says that it is static.
        skip = value.bound and ("staticmethod" not in decorators(node) or node.name == "__new__")
        found = from_arguments(node.args, value.module, skip_first=skip)
        if found is None or not found.var_keyword or node.args.kwarg is None:
            return found
        return self._through(found, value, node, node.args.kwarg.arg)

    def _keeps(self, module: Module, decorator: ast.expr) -> bool:
        name = last_name(decorator)
        if name in KEEPS:
            return True
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        for value in self._world.expression(module, target):
            if not isinstance(value, FuncV):
                return False
            return _wraps(value.node, factory=isinstance(decorator, ast.Call))
        return False

    def _through(self, found: Signature, value: FuncV, node: Function, kwargs: str) -> Signature:
        """Follow `**kwargs` into the one call that gets them; several, or another use of them, tell nothing."""
        accepts: set[str] = set()
        calls: list[ast.Call] = []
        known = 0
        uses = 0
        for part in walk(node):
            if isinstance(part, ast.Name) and part.id == kwargs:
                uses += 1
            if isinstance(part, ast.Call):
                if any(item.arg is None and is_name(item.value, kwargs) for item in part.keywords):
                    calls.append(part)
                    known += 1
                elif isinstance(part.func, ast.Attribute) and is_name(part.func.value, kwargs):
                    key = text_of(part.args[0]) if part.args else None
                    if part.func.attr in {"pop", "get", "setdefault"} and key:
                        accepts.add(key)
                        known += 1
            elif isinstance(part, ast.Subscript) and is_name(part.value, kwargs):
                key = text_of(part.slice)
                if key:
                    accepts.add(key)
                    known += 1
            elif isinstance(part, ast.Compare) and any(is_name(item, kwargs) for item in part.comparators):
                key = text_of(part.left)
                if key:
                    accepts.add(key)
                    known += 1
        if len(calls) != 1 or uses != known:
            return found
        targets = self._targets(value, calls[0].func)
        if targets is None or len(targets) != 1:
            return found
        target = targets[0]
        given = {item.arg for item in calls[0].keywords if item.arg}
        skip = len(calls[0].args)
        left = [
            item
            for number, item in enumerate(target.parameters)
            if item.name not in given and not (number < skip and item.kind != "keyword")
        ]
        return replace(
            found,
            accepts=frozenset(accepts),
            forwards=replace(target, parameters=tuple(left)),
            forwards_to=ast.unparse(calls[0].func),
        )

    def _targets(self, value: FuncV, callee: ast.expr) -> list[Signature] | None:
        if isinstance(callee, ast.Attribute) and value.owner is not None:
            first = value.node.args.args[0].arg if value.node.args.args else ""
            if isinstance(callee.value, ast.Call) and last_name(callee.value) == "super":
                return None  # which class comes next depends on the instance
            if isinstance(callee.value, ast.Name) and callee.value.id == first:
                return None
        name = callee
        while isinstance(name, ast.Attribute):
            name = name.value
        if not isinstance(name, ast.Name) or _local(value.node, name.id):
            return None
        values = [item for item in self._world.expression(value.module, callee) if item != UNKNOWN]
        return self.of(values[0]) if len(values) == 1 else None

    # Classes

    def constructor(self, info: ClassInfo) -> list[Signature] | None:
        """Return what calling a class takes: its `__init__` or `__new__`, or the fields that make one."""
        classes = self._world.classes
        order, outside = classes.mro(info)
        if any(
            item.arg == "metaclass" and last_name(item.value) != "ABCMeta" for c in order for item in c.node.keywords
        ):
            return None
        if any(not self._keeps_class(c, item) for c in order[:1] for item in c.node.decorator_list):
            return None
        roots = set(outside)
        for item in order:
            own = classes.own(item)
            members = own.get("__init__") or own.get("__new__")
            if members:
                functions = tuple(m.node for m in members if isinstance(m.node, Function))
                if not functions or ("__new__" in own and "__init__" in own):
                    return None
                return self.of(FuncV(functions[-1], item.module, item, True, functions))
            if self._makes_init(item):
                fields = self._fields(info, "dataclass") if roots <= PLAIN | _MODEL_ROOTS else None
                return [fields] if fields else None
        for names, model in ((_MODEL_ROOTS, "pydantic"), (_STRUCT_ROOTS, "msgspec")):
            if roots & names and roots <= names | PLAIN:
                fields = self._fields(info, model)
                return [fields] if fields else None
        if roots == {"typing.NamedTuple"} and len(order) == 1:
            fields = self._fields(info, "dataclass")
            return [fields] if fields else None
        return None

    def _keeps_class(self, info: ClassInfo, decorator: ast.expr) -> bool:
        return last_name(decorator) in {"dataclass", "final", "runtime_checkable", "total_ordering", "deprecated"} or (
            self._is_transform(info.module, decorator)
        )

    def _is_transform(self, module: Module, decorator: ast.expr) -> bool:
        """Whether a decorator is declared to make dataclasses (PEP 681)."""
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        values = self._world.expression(module, target)
        return any(
            isinstance(v, FuncV) and any("dataclass_transform" in decorators(node) for node in (v.all or (v.node,)))
            for v in values
        )

    def _dataclass(self, info: ClassInfo) -> ast.expr | None:
        for item in info.node.decorator_list:
            if last_name(item) == "dataclass" or self._is_transform(info.module, item):
                return item
        return None

    def _makes_init(self, info: ClassInfo) -> bool:
        decorator = self._dataclass(info)
        return decorator is not None and _flag(decorator, "init") is not False

    def _fields(self, info: ClassInfo, model: str) -> Signature | None:
        order, _ = self._world.classes.mro(info)
        found: dict[str, Parameter] = {}
        extra, loose = "", False
        for item in reversed(order):
            if model == "dataclass" and self._dataclass(item) is None and item is not info:
                continue
            if model == "pydantic":
                extra = extra_of(item) or extra
                loose = loose or validates_first(item)
            for parameter in own_fields(item, model, self._all_keyword(item, model)):
                found[parameter.name] = parameter
            for name, members in self._world.classes.own(item).items():
                if name in found and members[0].kind in {"method", "property"}:
                    return None  # a field hidden by a method: no plain model
        if extra == "unknown":
            loose = True
        parameters = [p for p in found.values() if p.kind != "keyword"] + [
            p for p in found.values() if p.kind == "keyword"
        ]
        return Signature(
            tuple(parameters),
            model=model,
            extra=extra or ("ignore" if model == "pydantic" else ""),
            loose=loose,
            owner=info,
        )

    def _all_keyword(self, info: ClassInfo, model: str) -> bool:
        if model == "pydantic":
            return True
        if model == "msgspec":
            return any(k.arg == "kw_only" and is_true(k.value) for k in info.node.keywords)
        decorator = self._dataclass(info)
        return decorator is not None and _flag(decorator, "kw_only") is True


def _wraps(node: Function, *, factory: bool) -> bool:
    """Whether a decorator returns an inner function that `wraps` its argument and passes everything on."""
    inner = [item for item in node.body if isinstance(item, Function)]
    if factory:
        return len(inner) == 1 and _wraps(inner[0], factory=False)
    arguments = [item.arg for item in [*node.args.posonlyargs, *node.args.args]]
    returned = [part.value for part in _own_statements(node) if isinstance(part, ast.Return)]
    for item in inner:
        if not all(isinstance(value, ast.Name) and value.id == item.name for value in returned):
            continue
        wrapped = [d for d in item.decorator_list if last_name(d) == "wraps" and isinstance(d, ast.Call)]
        of_argument = any(d.args and isinstance(d.args[0], ast.Name) and d.args[0].id in arguments for d in wrapped)
        if of_argument and item.args.vararg and item.args.kwarg and not item.args.args and not item.args.kwonlyargs:
            return True
    return False


def _own_statements(node: Function) -> Iterator[ast.stmt]:
    """Yield a function's statements, not those of functions inside it."""
    work: list[ast.AST] = list(node.body)
    while work:
        item = work.pop()
        if isinstance(item, ast.stmt):
            yield item
        if not isinstance(item, Function | ast.ClassDef | ast.expr):
            work += children(item)


def _local(node: Function, name: str) -> bool:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    if any(item.arg == name for item in arguments):
        return True
    for part in walk(node):
        if isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Store):
            return True
        if isinstance(part, ast.alias) and (part.asname or part.name.split(".", 1)[0]) == name:
            return True
    return False


def _flag(decorator: ast.expr, name: str) -> bool | None:
    if isinstance(decorator, ast.Call):
        for item in decorator.keywords:
            if item.arg == name and isinstance(item.value, ast.Constant):
                return bool(item.value.value)
    return None
