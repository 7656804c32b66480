"""What an expression inside a function stands for: from imports, annotations, constructors and return types.

Nothing is guessed: a name that is bound to two different things, or whose type is tested, stands for nothing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from lockstep.source.classes import decorators, last_name
from lockstep.source.model import Binding, Function, Module, Names, collect
from lockstep.source.nodes import walk
from lockstep.source.signature import KEEPS
from lockstep.source.values import UNKNOWN, ClassInfo, ClassV, DataV, External, FuncV, InstV, SuperV, Value
from lockstep.source.world import World

# Deeper chains of `a = b = c()` say nothing that a reader would follow either.
_DEEPEST = 12
_UNWRAPPED = {"Optional", "Annotated", "Final", "ClassVar", "Required", "NotRequired", "InitVar", "ReadOnly"}
_PROBES = {"isinstance", "issubclass", "type", "callable"}


@dataclass(frozen=True)
class Facts:
    """What a function does to types on its way.

    tested: expressions, as text, whose type it tests: they may be narrower than they are declared. last: their last
    words, for a quick look. walrus: the names that `:=` binds in it.
    """

    tested: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()
    walrus: frozenset[str] = frozenset()


_NO_FACTS = Facts()


def _facts(function: ast.AST) -> Facts:
    tested: set[str] = set()
    walrus: set[str] = set()
    for node in walk(function):
        if isinstance(node, ast.Call):
            if node.args and last_name(node.func) in _PROBES:
                tested.add(ast.unparse(node.args[0]))
        elif isinstance(node, ast.Match):
            tested.add(ast.unparse(node.subject))
        elif isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
            walrus.add(node.target.id)
    last = frozenset(text.rpartition(".")[2] for text in tested)
    return Facts(frozenset(tested), last, frozenset(walrus))


class Scope:
    """The names that a piece of code sees: a module's, a function's within it, and so on inwards.

    owner is the class whose method it is, or whose body; node is the module, class or function.
    """

    def __init__(
        self,
        world: World,
        module: Module,
        node: ast.AST | None = None,
        parent: Scope | None = None,
        owner: ClassInfo | None = None,
    ) -> None:
        self.world = world
        self.module = module
        self.node: ast.AST = node if node is not None else module.tree
        self.parent = parent
        self.owner = owner
        self._values: dict[str, tuple[Value, ...]] = {}

    @cached_property
    def names(self) -> Names:
        """What the scope itself binds, parameters among it."""
        node = self.node
        if isinstance(node, ast.Module):
            return self.module.names
        found = Names()
        if isinstance(node, Function | ast.Lambda):
            arguments = node.args
            for item in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
                found.add(item.arg, Binding("argument", item, annotation=item.annotation))
            for extra in (arguments.vararg, arguments.kwarg):
                if extra is not None:
                    found.add(extra.arg, Binding("other", extra))
        if isinstance(node, Function | ast.ClassDef):
            collect(node.body, self.module.absolute, found)
            for name in self.facts.walrus:
                found.add(name, Binding("other", node))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            for generator in node.generators:
                for part in walk(generator.target):
                    if isinstance(part, ast.Name):
                        found.add(part.id, Binding("other", part))
        return found

    @cached_property
    def facts(self) -> Facts:
        """What the outermost function around this scope tests and binds on the way; nothing at a module's top level."""
        outer = self.parent
        if outer is not None and not isinstance(outer.node, ast.Module | ast.ClassDef):
            return outer.facts
        if isinstance(self.node, ast.Module | ast.ClassDef):
            return _NO_FACTS
        known = self.module.facts.get(self.node)
        if not isinstance(known, Facts):
            known = _facts(self.node)
            self.module.facts[self.node] = known
        return known

    def function(self, node: Function, owner: ClassInfo | None) -> Scope:
        return Scope(self.world, self.module, node, self, owner)


class Infer:
    """Types of expressions within one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._modules: dict[Module, Scope] = {}
        self._methods: dict[Function, Scope] = {}
        self._depth = 0

    def top(self, module: Module) -> Scope:
        """Return a module's own scope."""
        if module not in self._modules:
            self._modules[module] = Scope(self.world, module)
        return self._modules[module]

    # Names

    def name(self, scope: Scope, name: str) -> tuple[Value, ...]:
        """Return what a name stands for where it is read; nothing where it comes from a failed import."""
        here: Scope | None = scope
        first = True
        while here is not None:
            inside_class = isinstance(here.node, ast.ClassDef) and not first
            if not inside_class and name in here.names.table:
                return self._bound(here, name)
            first = False
            here = here.parent
        return self._bound(self.top(scope.module), name)

    def _bound(self, scope: Scope, name: str) -> tuple[Value, ...]:
        if name not in scope._values:
            scope._values[name] = (UNKNOWN,)  # stands while a circle is followed
            scope._values[name] = self._all_of(scope, name)
        return scope._values[name]

    def _all_of(self, scope: Scope, name: str) -> tuple[Value, ...]:
        bindings = scope.names.table.get(name, [])
        if isinstance(scope.node, ast.Module):
            values = self.world.resolve(scope.module, name) or self._typing(scope, bindings) or self._moved(bindings)
            if not values and not bindings:
                return (External(f"builtins.{name}"),)
            return tuple(dict.fromkeys(self.typed(value) for value in values))
        if name in scope.facts.tested:
            return (UNKNOWN,)
        found: list[Value] = []
        for binding in bindings:
            if binding.kind == "note":
                continue
            found += self._one(scope, binding)
        return tuple(dict.fromkeys(found)) or (UNKNOWN,)

    def _typing(self, scope: Scope, bindings: list[Binding]) -> tuple[Value, ...]:
        return tuple(self.world.bound(scope.module, [b for b in bindings if b.typing_only]))

    def _moved(self, bindings: list[Binding]) -> tuple[Value, ...]:
        """A name whose import fails goes on as its new self, so that its calls are checked as well."""
        for binding in bindings:
            if binding.kind == "from" and self.world.is_ours(binding.module):
                places = self.world.moved(binding.module, binding.name)
                if len(places) == 1:
                    return tuple(self.world.member(places[0], binding.name))
        return (UNKNOWN,) if bindings else ()

    def _one(self, scope: Scope, binding: Binding) -> list[Value]:
        if binding.kind == "argument" and isinstance(binding.node, ast.arg):
            return [self._argument(scope, binding.node)]
        if binding.annotation is not None:
            return [self.annotated(scope, binding.annotation)]
        if binding.kind == "value" and binding.value is not None:
            return list(self.of(scope, binding.value))
        if binding.kind in {"import", "from"}:
            return self.world.bound(scope.module, [binding]) or list(self._moved([binding]))
        if binding.kind in {"def", "class"}:
            return self.world.bound(scope.module, [binding])
        return [UNKNOWN]

    def _argument(self, scope: Scope, argument: ast.arg) -> Value:
        node = scope.node
        if isinstance(node, Function) and scope.owner is not None and "staticmethod" not in decorators(node):
            arguments = [*node.args.posonlyargs, *node.args.args]
            if arguments and arguments[0] is argument:
                as_class = "classmethod" in decorators(node) or node.name in {"__new__", "__init_subclass__"}
                return ClassV(scope.owner) if as_class else InstV(scope.owner)
        return self.annotated(scope, argument.annotation) if argument.annotation is not None else UNKNOWN

    # Expressions

    def of(self, scope: Scope, expr: ast.expr) -> tuple[Value, ...]:
        """Return what an expression may stand for; UNKNOWN where nothing can be said, nothing where it fails."""
        if self._depth > _DEEPEST:
            return (UNKNOWN,)
        self._depth += 1
        try:
            return self._of(scope, expr)
        finally:
            self._depth -= 1

    def _of(self, scope: Scope, expr: ast.expr) -> tuple[Value, ...]:
        if isinstance(expr, ast.Name):
            return self.name(scope, expr.id)
        if isinstance(expr, ast.Attribute):
            if expr.attr in scope.facts.last and ast.unparse(expr) in scope.facts.tested:
                return (UNKNOWN,)
            values = self.of(scope, expr.value)
            if len(values) != 1:
                return (UNKNOWN,)
            return tuple(dict.fromkeys(self.typed(v) for v in self.world.attribute(values[0], expr.attr)))
        if isinstance(expr, ast.Call):
            return (self._call(scope, expr),)
        if isinstance(expr, ast.Await):
            if isinstance(expr.value, ast.Call):
                return (self._call(scope, expr.value, awaited=True),)
            return (UNKNOWN,)
        if isinstance(expr, ast.NamedExpr):
            return self.of(scope, expr.value)
        if isinstance(expr, ast.IfExp):
            both = dict.fromkeys([*self.of(scope, expr.body), *self.of(scope, expr.orelse)])
            return tuple(both)
        return (UNKNOWN,)

    def _call(self, scope: Scope, call: ast.Call, *, awaited: bool = False) -> Value:
        if isinstance(call.func, ast.Name):
            if call.func.id == "super" and not call.args:
                owner = self._owner(scope)
                return SuperV(owner) if owner is not None else UNKNOWN
            if call.func.id == "cast" and len(call.args) == 2:
                return self.annotated(scope, call.args[0])
        values = self.of(scope, call.func)
        if len(values) != 1:
            return UNKNOWN
        callee = values[0]
        if isinstance(callee, ClassV) and not awaited:
            makes = self.world.classes.find(callee.info, "__new__")
            return UNKNOWN if makes else InstV(callee.info)
        if isinstance(callee, FuncV):
            return self.returned(callee, awaited=awaited)
        return UNKNOWN

    def _owner(self, scope: Scope) -> ClassInfo | None:
        here: Scope | None = scope
        while here is not None:
            if here.owner is not None:
                return here.owner
            here = here.parent
        return None

    def returned(self, function: FuncV, *, awaited: bool = False) -> Value:
        """Return the one type that a function's return annotations name, or UNKNOWN."""
        found = set()
        for node in function.all or (function.node,):
            names = decorators(node)
            if node.returns is None or isinstance(node, ast.AsyncFunctionDef) is not awaited:
                return UNKNOWN
            if any(name not in KEEPS or name.endswith("contextmanager") for name in names):
                return UNKNOWN
            found.add(self.annotated(self.top(function.module), node.returns))
        return found.pop() if len(found) == 1 else UNKNOWN

    def typed(self, value: Value) -> Value:
        """Turn a piece of data into an instance of its class, where its annotation or its constructor tells."""
        if not isinstance(value, DataV) or self._depth > _DEEPEST:
            return value
        scope = self.top(value.module)
        if value.annotation is not None:
            known = self.annotated(scope, value.annotation)
            return value if known == UNKNOWN else known
        if value.method is not None and value.owner is not None:
            if value.method not in self._methods:
                self._methods[value.method] = Scope(self.world, value.module, value.method, scope, value.owner)
            scope = self._methods[value.method]
        if isinstance(value.node, ast.Call) or (value.method is not None and value.node is not None):
            found = self.of(scope, value.node)
            if len(found) == 1 and isinstance(found[0], InstV):
                return found[0]
        return value

    # Annotations

    def annotated(self, scope: Scope, expr: ast.expr) -> Value:
        """Return what a thing with that annotation is; of a union with None, the other part."""
        if isinstance(expr, ast.Constant) and isinstance(expr.value, str):
            try:
                return self.annotated(scope, ast.parse(expr.value, mode="eval").body)
            except SyntaxError:
                return UNKNOWN
        if isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.BitOr):
            return self._union(scope, [expr.left, expr.right])
        if isinstance(expr, ast.Subscript):
            kind = last_name(expr.value)
            inner = list(expr.slice.elts) if isinstance(expr.slice, ast.Tuple) else [expr.slice]
            if kind == "Union":
                return self._union(scope, inner)
            if kind in _UNWRAPPED:
                return self.annotated(scope, inner[0])
            if kind in {"type", "Type"}:
                made = self.annotated(scope, inner[0])
                return ClassV(made.info) if isinstance(made, InstV) else UNKNOWN
            return self.annotated(scope, expr.value)
        if isinstance(expr, ast.Name | ast.Attribute):
            values = self._named(scope, expr)
            if len(values) == 1 and isinstance(values[0], ClassV):
                return InstV(values[0].info)
        return UNKNOWN

    def _named(self, scope: Scope, expr: ast.expr) -> tuple[Value, ...]:
        if isinstance(expr, ast.Name):
            here: Scope | None = scope
            while here is not None and not isinstance(here.node, ast.Module):
                if expr.id in here.names.table and not isinstance(here.node, ast.ClassDef):
                    return self._bound(here, expr.id)
                here = here.parent
            found = self.world.resolve_typed(scope.module, expr.id)
            return found or self._moved(scope.module.names.table.get(expr.id, []))
        if isinstance(expr, ast.Attribute):
            values = self._named(scope, expr.value)
            return self.world.attribute(values[0], expr.attr) if len(values) == 1 else (UNKNOWN,)
        return (UNKNOWN,)

    def _union(self, scope: Scope, parts: list[ast.expr]) -> Value:
        left = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is None)]
        return self.annotated(scope, left[0]) if len(left) == 1 else UNKNOWN
