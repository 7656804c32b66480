"""What a function or a class takes when it is called, and whether a call fits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockstep.source.classes import PLAIN, decorators, last_name
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
_FIELD_CALLS = {"field", "Field", "get_field", "PrivateAttr"}


@dataclass(frozen=True)
class Parameter:
    """One parameter. kind: positional (only), either, keyword (only). default is its expression; module reads it."""

    name: str
    kind: str
    required: bool
    default: ast.expr | None
    module: Module
    aliases: tuple[str, ...] = ()
    annotation: ast.expr | None = None


@dataclass(frozen=True)
class Signature:
    """Parameters in order, self left out. model: dataclass, pydantic or msgspec for a class built from its fields.

    extra: what a pydantic model does with a keyword that is no field: allow, ignore, forbid or unknown.
    loose: a validator sees the arguments first, so that neither missing nor unknown ones can be judged.
    accepts: keywords that the body takes out of its `**kwargs`; forwards: the signature that gets the rest of them.
    """

    parameters: tuple[Parameter, ...]
    var_positional: bool = False
    var_keyword: bool = False
    model: str = ""
    extra: str = ""
    loose: bool = False
    owner: ClassInfo | None = None
    accepts: frozenset[str] = frozenset()
    forwards: Signature | None = None
    forwards_to: str = ""

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter that a keyword of that name fills, also through `**kwargs` that are handed on."""
        for item in self.parameters:
            if item.kind != "positional" and (item.name == name or name in item.aliases):
                return item
        return self.forwards.parameter(name) if self.forwards is not None else None

    def text(self) -> str:
        """Return the parameters as a person would write them, without annotations."""
        parts: list[str] = []
        star = False
        for item in self.parameters:
            if item.kind == "keyword" and not star:
                parts.append("*args" if self.var_positional else "*")
                star = True
            default = f"={ast.unparse(item.default)}" if item.default is not None else ""
            parts.append(f"{item.name}{default}" if len(default) < 30 else f"{item.name}=…")
        if self.var_positional and not star:
            parts.append("*args")
        if self.var_keyword:
            parts.append("**kwargs")
        return ", ".join(parts)


@dataclass(frozen=True)
class Misfit:
    """Why a call does not fit. kind: unknown (keyword), missing (argument), many (positional), twice, dropped."""

    kind: str
    name: str


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
                if any(item.arg is None and _is_name(item.value, kwargs) for item in part.keywords):
                    calls.append(part)
                    known += 1
                elif isinstance(part.func, ast.Attribute) and _is_name(part.func.value, kwargs):
                    key = _text(part.args[0]) if part.args else None
                    if part.func.attr in {"pop", "get", "setdefault"} and key:
                        accepts.add(key)
                        known += 1
            elif isinstance(part, ast.Subscript) and _is_name(part.value, kwargs):
                key = _text(part.slice)
                if key:
                    accepts.add(key)
                    known += 1
            elif isinstance(part, ast.Compare) and any(_is_name(item, kwargs) for item in part.comparators):
                key = _text(part.left)
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
                extra = _extra(item) or extra
                loose = loose or _validates_first(item)
            for parameter in _own_fields(item, model, self._all_keyword(item, model)):
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
            return any(k.arg == "kw_only" and _is_true(k.value) for k in info.node.keywords)
        decorator = self._dataclass(info)
        return decorator is not None and _flag(decorator, "kw_only") is True


def from_arguments(arguments: ast.arguments, module: Module, *, skip_first: bool) -> Signature | None:
    """Return the signature that a def or lambda spells out; None where self should be skipped and is not there."""
    plain = [(item, "positional") for item in arguments.posonlyargs] + [(item, "either") for item in arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    found = [
        Parameter(item.arg, kind, default is None, default, module, (), item.annotation)
        for (item, kind), default in zip(plain, defaults, strict=True)
    ]
    if skip_first:
        if not found and not arguments.vararg:
            return None
        found = found[1:]
    for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(Parameter(item.arg, "keyword", default is None, default, module, (), item.annotation))
    return Signature(tuple(found), arguments.vararg is not None, arguments.kwarg is not None)


def fit(signature: Signature, call: ast.Call) -> list[Misfit]:
    """Return why a call does not fit a signature; nothing where it fits or where `*` and `**` hide the answer."""
    found: list[Misfit] = []
    starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    spread = any(item.arg is None for item in call.keywords)
    places = [item for item in signature.parameters if item.kind != "keyword"]
    filled: set[str] = set()
    if not starred:
        if len(call.args) > len(places) and not signature.var_positional:
            found.append(Misfit("many", str(len(places))))
        filled = {item.name for item in places[: len(call.args)]}
    for item in call.keywords:
        if item.arg is None:
            continue
        parameter = signature.parameter(item.arg)
        if parameter is None:
            misfit = _unknown_keyword(signature, item.arg)
            if misfit:
                found.append(misfit)
        elif parameter.name in filled and parameter.kind == "either":
            found.append(Misfit("twice", item.arg))
        else:
            filled.add(parameter.name)
    if not starred and not spread and not signature.loose:
        found += [
            Misfit("missing", item.name) for item in signature.parameters if item.required and item.name not in filled
        ]
    return found


def _unknown_keyword(signature: Signature, name: str) -> Misfit | None:
    if signature.forwards is not None:
        inner = signature.forwards
        if name in signature.accepts or inner.var_keyword or inner.loose or inner.extra == "allow":
            return None
        return Misfit("unknown", name)
    if signature.var_keyword or signature.loose or signature.extra == "allow":
        return None
    return Misfit("dropped" if signature.extra == "ignore" else "unknown", name)


def _own_fields(info: ClassInfo, model: str, all_keyword: bool) -> list[Parameter]:
    found: list[Parameter] = []
    keyword = all_keyword
    for node in info.node.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name, annotation = node.target.id, node.annotation
        kind = last_name(annotation.value if isinstance(annotation, ast.Subscript) else annotation)
        if kind == "KW_ONLY":
            keyword = True
            continue
        if kind == "ClassVar" or (isinstance(annotation, ast.Constant) and "ClassVar" in str(annotation.value)):
            continue
        if model == "pydantic" and name.startswith("_"):
            continue
        default, aliases, own_keyword, init = _field(node.value)
        if not init:
            continue
        place = "keyword" if keyword or own_keyword else "either"
        required = default is None
        found.append(Parameter(name, place, required, default, info.module, aliases, annotation))
    return found


def _field(value: ast.expr | None) -> tuple[ast.expr | None, tuple[str, ...], bool, bool]:
    """Return a field's default, its aliases, whether it is keyword-only, and whether the constructor takes it."""
    if not isinstance(value, ast.Call) or last_name(value) not in _FIELD_CALLS:
        return value, (), False, True
    given = {item.arg: item.value for item in value.keywords}
    if last_name(value) == "PrivateAttr":
        return value, (), False, False
    default: ast.expr | None = given.get("default") or given.get("default_factory")
    if default is None and last_name(value) == "get_field":
        default = value
    if default is None and value.args and last_name(value) == "Field":
        default = value.args[0]
    if isinstance(default, ast.Constant) and default.value is ...:
        default = None
    if None in given:
        default = default or value  # `**more`: may hold a default
    aliases = tuple(text for key in ("alias", "validation_alias") if key in given and (text := _text(given[key])))
    init = given.get("init")
    own_keyword = "kw_only" in given and _is_true(given["kw_only"])
    return default, aliases, own_keyword, not (isinstance(init, ast.Constant) and init.value is False)


def _extra(info: ClassInfo) -> str:
    for item in info.node.keywords:
        if item.arg == "extra":
            return _text(item.value) or "unknown"
    for node in info.node.body:
        if (isinstance(node, ast.Assign) and any(_is_name(target, "model_config") for target in node.targets)) or (
            isinstance(node, ast.AnnAssign) and _is_name(node.target, "model_config") and node.value is not None
        ):
            value = node.value
        elif isinstance(node, ast.ClassDef) and node.name == "Config":
            return "unknown"
        else:
            continue
        if isinstance(value, ast.Call):
            given = {item.arg: item.value for item in value.keywords}
        elif isinstance(value, ast.Dict):
            given = {_text(key) if key else None: item for key, item in zip(value.keys, value.values, strict=True)}
        else:
            return "unknown"
        if "alias_generator" in given or None in given:
            return "unknown"
        return (_text(given["extra"]) or "unknown") if "extra" in given else ""
    return ""


def _validates_first(info: ClassInfo) -> bool:
    for node in info.node.body:
        if isinstance(node, Function):
            for item in node.decorator_list:
                if last_name(item) == "root_validator":
                    return True
                if last_name(item) == "model_validator" and isinstance(item, ast.Call):
                    mode = next((_text(k.value) for k in item.keywords if k.arg == "mode"), "")
                    if mode != "after":
                        return True
    return False


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


def _is_true(expr: ast.expr) -> bool:
    return isinstance(expr, ast.Constant) and expr.value is True


def _is_name(expr: ast.expr, name: str) -> bool:
    return isinstance(expr, ast.Name) and expr.id == name


def _text(expr: ast.expr) -> str | None:
    return expr.value if isinstance(expr, ast.Constant) and isinstance(expr.value, str) else None
