"""What an expression of somebody's source can stand for, as far as reading tells."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from lockstep.source.model import Function, Module


@dataclass(eq=False)
class ClassInfo:
    """A class as it is written: where, in which module; nested in which class, if any."""

    node: ast.ClassDef = field(repr=False)
    module: Module = field(repr=False)
    outer: str = ""

    @property
    def name(self) -> str:
        return f"{self.outer}.{self.node.name}" if self.outer else self.node.name

    @property
    def dotted(self) -> str:
        return f"{self.module.name}.{self.name}"


@dataclass(frozen=True)
class Member:
    """An attribute of a class.

    kind: method, property, value, note (annotation only), instance (`self.x = …`), class or import.
    """

    name: str
    kind: str
    node: ast.AST
    owner: ClassInfo
    value: ast.expr | None = None
    annotation: ast.expr | None = None
    method: Function | None = None


@dataclass(frozen=True)
class ModuleV:
    """A module, by its dotted name."""

    name: str


@dataclass(frozen=True)
class ClassV:
    """A class itself."""

    info: ClassInfo


@dataclass(frozen=True)
class InstV:
    """An instance of a class."""

    info: ClassInfo


@dataclass(frozen=True)
class SuperV:
    """`super()` in a method of a class."""

    info: ClassInfo


@dataclass(frozen=True)
class FuncV:
    """A function. all: every definition that may be the one (overloads, branches). bound: self is passed already."""

    node: Function
    module: Module
    owner: ClassInfo | None = None
    bound: bool = False
    all: tuple[Function, ...] = field(default=(), compare=False)

    @property
    def dotted(self) -> str:
        inside = f"{self.owner.name}." if self.owner else ""
        return f"{self.module.name}.{inside}{self.node.name}"


@dataclass(frozen=True)
class DataV:
    """A value that is neither module, class nor function: a constant, a table, an attribute.

    node is its expression, if it has one; owner and method say where `self.x = …` stands.
    """

    module: Module
    node: ast.expr | None = None
    annotation: ast.expr | None = None
    owner: ClassInfo | None = None
    method: Function | None = None


@dataclass(frozen=True)
class External:
    """Something of a package that is not read, by its dotted name."""

    name: str


@dataclass(frozen=True)
class Unknown:
    """There, but nothing can be told about it; or perhaps not there."""


UNKNOWN = Unknown()
Value = ModuleV | ClassV | InstV | SuperV | FuncV | DataV | External | Unknown
