"""One pass over a file: every import, call, attribute and class, with its scope and with what guards it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lockstep.source import guards
from lockstep.source.infer import Infer, Scope
from lockstep.source.model import Function, Module
from lockstep.source.nodes import children
from lockstep.source.values import ClassInfo


@dataclass(frozen=True, eq=False)
class Place:
    """Where a piece of code stands. guards: what may be missing here; tries: the imports that a fallback stands for."""

    module: Module
    scope: Scope
    guards: frozenset[str] = frozenset()
    probed: frozenset[str] = frozenset()
    fallback_of: tuple[ast.stmt, ...] | None = None
    fallback_guards: frozenset[str] = frozenset()


class Visitor(Protocol):
    """What a check is told during the pass."""

    def on_import(self, node: ast.Import | ast.ImportFrom, place: Place) -> None: ...
    def on_call(self, node: ast.Call, place: Place) -> None: ...
    def on_attribute(self, node: ast.Attribute, place: Place) -> None: ...
    def on_class(self, info: ClassInfo, place: Place) -> None: ...


class Walk:
    """The pass. It descends into functions and classes with a scope of their own."""

    def __init__(self, infer: Infer, visitor: Visitor) -> None:
        self._infer = infer
        self._visitor = visitor
        self._known = guards.NONE

    def module(self, module: Module, *, probe: bool = True) -> None:
        """Tell the visitor of everything in a file. Without `probe`, names that the file probes are not marked."""
        self._known = guards.probes(module) if probe else guards.NONE
        place = Place(module, self._infer.top(module), probed=self._known.names)
        self._block(module.tree.body, place)

    def _block(self, body: Sequence[ast.stmt], place: Place) -> None:
        for node in body:
            self._statement(node, place)
            if isinstance(node, ast.If) and guards.leaves(node):
                more = guards.of_test(node.test, self._known)
                if more:
                    place = replace(place, guards=place.guards | more)

    def _statement(self, node: ast.stmt, place: Place) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._visitor.on_import(node, place)
        elif isinstance(node, Function):
            self._function(node, place)
        elif isinstance(node, ast.ClassDef):
            self._class(node, place)
        elif isinstance(node, ast.If):
            self._expr(node.test, place)
            inner = replace(place, guards=place.guards | guards.of_test(node.test, self._known))
            self._block(node.body, inner)
            self._block(node.orelse, inner)
        elif isinstance(node, ast.Try | ast.TryStar):
            self._try(node, place)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self._expr(item.context_expr, place)
            self._block(node.body, replace(place, guards=place.guards | guards.of_with(node)))
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._expr(node.target, place)
            self._expr(node.iter, place)
            self._block([*node.body, *node.orelse], place)
        elif isinstance(node, ast.While):
            self._expr(node.test, place)
            self._block([*node.body, *node.orelse], place)
        elif isinstance(node, ast.Match):
            self._expr(node.subject, place)
            for case in node.cases:
                self._block(case.body, place)
        else:
            self._children(node, place)

    def _try(self, node: ast.Try | ast.TryStar, place: Place) -> None:
        excused = guards.guarded_by(node)
        self._block(node.body, replace(place, guards=place.guards | excused))
        self._block([*node.orelse, *node.finalbody], place)
        for handler in node.handlers:
            if guards.IMPORT in guards.caught(handler):
                # Reached only where the body's imports fail: judged only then, under the guards outside.
                inner = replace(place, fallback_of=tuple(node.body), fallback_guards=place.guards)
            else:
                inner = replace(place, guards=place.guards | guards.caught(handler))
            self._block(handler.body, inner)

    def _function(self, node: Function, place: Place) -> None:
        for item in [*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)]:
            self._expr(item, place)
        owner = place.scope.owner if isinstance(place.scope.node, ast.ClassDef) else None
        more = frozenset[str]()
        for item in node.decorator_list:
            if isinstance(item, ast.Call):
                for part in [*item.args, *(k.value for k in item.keywords)]:
                    more |= guards.of_test(part, self._known)
        inner = replace(place, scope=place.scope.function(node, owner), guards=place.guards | more)
        self._block(node.body, inner)

    def _class(self, node: ast.ClassDef, place: Place) -> None:
        outer = place.scope.owner.name if place.scope.owner and isinstance(place.scope.node, ast.ClassDef) else ""
        info = self._infer.world.classes.info(place.module, node, outer)
        for item in [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]:
            self._expr(item, place)
        scope = Scope(self._infer.world, place.module, node, place.scope, info)
        self._visitor.on_class(info, place)
        self._block(node.body, replace(place, scope=scope))

    def _children(self, node: ast.AST, place: Place) -> None:
        for child in children(node):
            if isinstance(child, ast.expr):
                self._expr(child, place)
            elif isinstance(child, ast.stmt):
                self._statement(child, place)
            elif not isinstance(child, ast.expr_context | ast.operator):
                self._children(child, place)

    def _expr(self, node: ast.expr, place: Place) -> None:
        if isinstance(node, ast.Call):
            self._visitor.on_call(node, place)
        elif isinstance(node, ast.Attribute):
            self._visitor.on_attribute(node, place)
        elif isinstance(node, ast.Lambda):
            scope = Scope(self._infer.world, place.module, node, place.scope)
            self._expr(node.body, replace(place, scope=scope))
            return
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            place = replace(place, scope=Scope(self._infer.world, place.module, node, place.scope))
        elif isinstance(node, ast.IfExp):
            self._expr(node.test, place)
            inner = replace(place, guards=place.guards | guards.of_test(node.test, self._known))
            self._each([node.body, node.orelse], inner)
            return
        elif isinstance(node, ast.BoolOp):
            asks = frozenset[str]()
            for value in node.values:
                self._expr(value, replace(place, guards=place.guards | asks))
                asks |= guards.of_test(value, self._known)
            return
        self._children(node, place)

    def _each(self, nodes: Iterable[ast.expr], place: Place) -> None:
        for node in nodes:
            self._expr(node, place)
