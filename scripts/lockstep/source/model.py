"""One Python file as a table of the names that it binds, without running it."""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lockstep.source.nodes import walk

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

# Code at a module's top level that can add names which no reader of the file can list.
_DYNAMIC = re.compile(
    rb"globals\(\)|sys\.modules\[__name__\]|\bexec\(|\bvars\(\)|\blocals\(\)\.update|__dict__\.update"
)


@dataclass(frozen=True, eq=False)
class Binding:
    """One place where a name gets a meaning.

    kind: def, class, import (module is what the name stands for), from (name of module), value, note (an annotation
    without a value) or other (a loop, a with, a tuple: bound, but to nothing that can be told).
    typing_only: it stands under `if TYPE_CHECKING`, so it is not there when the program runs.
    """

    kind: str
    node: ast.AST
    module: str = ""
    name: str = ""
    value: ast.expr | None = None
    annotation: ast.expr | None = None
    typing_only: bool = False


@dataclass
class Names:
    """What a block of statements binds: by name, in order; and the modules whose names it takes over with `*`."""

    table: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[Binding] = field(default_factory=list)

    def add(self, name: str, binding: Binding) -> None:
        self.table.setdefault(name, []).append(binding)


@dataclass(eq=False)
class Module:
    """A parsed file. name is dotted; path is for messages; owner is "package" or "tree" (the downstream code).

    facts keeps what others found out about single functions of the file.
    """

    name: str
    path: str
    is_package: bool
    is_stub: bool
    owner: str
    text: bytes = field(repr=False)
    tree: ast.Module = field(repr=False)
    facts: dict[ast.AST, object] = field(default_factory=dict, repr=False)

    def absolute(self, module: str | None, level: int) -> str:
        """Return the dotted name that `from <level dots><module>` means in this file (the import statement's rules)."""
        if not level:
            return module or ""
        parts = self.name.split(".")
        cut = len(parts) - level + (1 if self.is_package else 0)
        base = parts[: max(cut, 0)]
        return ".".join([*base, *([module] if module else [])])

    @cached_property
    def lines(self) -> list[bytes]:
        """The file's lines, the first one at 0."""
        return self.text.splitlines()

    def silences(self, line: int, code: str) -> bool:
        """Whether a line tells mypy that it knows better: `# type: ignore[code]`. Lines count from 1."""
        if b"type: ignore[" not in self.text or not 0 < line <= len(self.lines):
            return False
        _, found, codes = self.lines[line - 1].partition(b"type: ignore[")
        return bool(found) and code.encode() in codes

    @cached_property
    def names(self) -> Names:
        """What the file's top level binds, and what its functions declare global."""
        found = Names()
        collect(self.tree.body, self.absolute, found)
        if b":=" in self.text:
            for statement in self.tree.body:
                if not isinstance(statement, Function | ast.ClassDef):
                    collect_walrus(statement, found)
        if b"global " in self.text:
            for node in walk(self.tree):
                if isinstance(node, ast.Global):
                    for name in node.names:
                        found.add(name, Binding("other", node))
        return found

    @cached_property
    def dynamic(self) -> bool:
        """Whether names may appear in the module that the file does not spell out."""
        return bool(_DYNAMIC.search(self.text))

    @cached_property
    def lazy(self) -> Function | None:
        """The module's own `__getattr__` (PEP 562), or None."""
        for binding in self.names.table.get("__getattr__", []):
            if isinstance(binding.node, Function):
                return binding.node
        return None

    @cached_property
    def strings(self) -> dict[str, ast.expr | None]:
        """Every string constant of the file; where one is a dict's key, with the value beside it."""
        found: dict[str, ast.expr | None] = {}
        for node in walk(self.tree):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        found[key.value] = value
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.setdefault(node.value, None)
        return found

    @cached_property
    def exported(self) -> set[str] | None:
        """The names of `__all__` where it is a plain list, else None."""
        bindings = self.names.table.get("__all__")
        if not bindings:
            return None
        found: set[str] = set()
        for binding in bindings:
            if not isinstance(binding.value, ast.List | ast.Tuple):
                return None
            for item in binding.value.elts:
                if not (isinstance(item, ast.Constant) and isinstance(item.value, str)):
                    return None
                found.add(item.value)
        return found


_trees: dict[bytes, ast.Module] = {}


def parse(text: bytes) -> ast.Module:
    """Parse a file; SyntaxError or ValueError where it is no Python. Equal files share one tree, across versions."""
    key = hashlib.blake2b(text, digest_size=16).digest()
    if key not in _trees:
        with warnings.catch_warnings():
            # Invalid escapes in other people's strings are not this program's matter.
            warnings.simplefilter("ignore")
            _trees[key] = ast.parse(text)
    return _trees[key]


def is_type_checking(test: ast.expr) -> bool:
    """Whether a condition is TYPE_CHECKING itself: true for type checkers and never at run time."""
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _targets(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value)
    elif isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _targets(item)


def collect(
    body: Sequence[ast.stmt], absolute: Callable[[str | None, int], str], into: Names, typing_only: bool = False
) -> None:
    """Add what a block binds to `into`: both branches of an if, all parts of a try; not the insides of functions."""

    def other(target: ast.expr, node: ast.AST) -> None:
        for name in _targets(target):
            into.add(name, Binding("other", node, typing_only=typing_only))

    for node in body:
        if isinstance(node, Function):
            into.add(node.name, Binding("def", node, typing_only=typing_only))
        elif isinstance(node, ast.ClassDef):
            into.add(node.name, Binding("class", node, typing_only=typing_only))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.split(".", 1)[0]
                into.add(bound, Binding("import", node, alias.name if alias.asname else bound, typing_only=typing_only))
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node.module, node.level)
            for alias in node.names:
                binding = Binding("from", node, module, alias.name, typing_only=typing_only)
                if alias.name == "*":
                    into.stars.append(binding)
                else:
                    into.add(alias.asname or alias.name, binding)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    into.add(target.id, Binding("value", node, value=node.value, typing_only=typing_only))
                else:
                    other(target, node)
        elif isinstance(node, ast.AnnAssign):
            if isinstance(node.target, ast.Name):
                kind = "value" if node.value is not None else "note"
                into.add(
                    node.target.id,
                    Binding(kind, node, value=node.value, annotation=node.annotation, typing_only=typing_only),
                )
        elif isinstance(node, ast.AugAssign):
            other(node.target, node)
        elif isinstance(node, ast.If):
            if is_type_checking(node.test):
                collect(node.body, absolute, into, True)
                collect(node.orelse, absolute, into, typing_only)
            elif isinstance(node.test, ast.UnaryOp) and is_type_checking(node.test.operand):
                collect(node.body, absolute, into, typing_only)
                collect(node.orelse, absolute, into, True)
            else:
                collect(node.body, absolute, into, typing_only)
                collect(node.orelse, absolute, into, typing_only)
        elif isinstance(node, ast.For | ast.AsyncFor):
            other(node.target, node)
            collect([*node.body, *node.orelse], absolute, into, typing_only)
        elif isinstance(node, ast.While):
            collect([*node.body, *node.orelse], absolute, into, typing_only)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if item.optional_vars is not None:
                    other(item.optional_vars, node)
            collect(node.body, absolute, into, typing_only)
        elif isinstance(node, ast.Try | ast.TryStar):
            collect([*node.body, *node.orelse, *node.finalbody], absolute, into, typing_only)
            for handler in node.handlers:
                if handler.name:
                    into.add(handler.name, Binding("other", handler, typing_only=typing_only))
                collect(handler.body, absolute, into, typing_only)
        elif isinstance(node, ast.Match):
            for part in walk(node):
                if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name:
                    into.add(part.name, Binding("other", part, typing_only=typing_only))
            for case in node.cases:
                collect(case.body, absolute, into, typing_only)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                into.add(name, Binding("other", node, typing_only=typing_only))
        elif type(node).__name__ == "TypeAlias":
            alias_name = getattr(node, "name", None)
            if isinstance(alias_name, ast.Name):
                into.add(alias_name.id, Binding("other", node, typing_only=typing_only))


def collect_walrus(node: ast.AST, into: Names) -> None:
    """Add the names that `:=` binds anywhere below a node."""
    for part in walk(node):
        if isinstance(part, ast.NamedExpr) and isinstance(part.target, ast.Name):
            into.add(part.target.id, Binding("other", part))
