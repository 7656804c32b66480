"""Walking over syntax trees: `ast.walk` for large trees, several times faster than the one of the standard library."""

from __future__ import annotations

import ast
from collections.abc import Iterator

# Fields that never hold a statement or an expression.
_LEAVES = {"ctx", "op", "ops", "id", "attr", "name", "names", "arg", "module", "level", "lineno", "kind", "asname"}
_LEAVES |= {"type_comment", "is_async", "conversion", "simple", "n", "s", "type_ignores", "rest"}


_known: dict[type[ast.AST], tuple[str, ...]] = {}


def fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a kind of node that hold other nodes; an import's names and an argument's are among them."""
    if kind not in _known:
        _known[kind] = _fields(kind)
    return _known[kind]


def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    keep = {"names"} if kind in {ast.Import, ast.ImportFrom} else set()
    if kind is ast.Constant:
        return ()
    if kind.__name__ in {"TypeAlias", "TypeVar", "ParamSpec", "TypeVarTuple"}:
        return kind._fields
    return tuple(name for name in kind._fields if name not in _LEAVES or name in keep)


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes directly below a node, in the order of the source; operators and contexts left out."""
    for name in fields(node.__class__):
        value = getattr(node, name, None)
        if value.__class__ is list:
            for item in value:
                if isinstance(item, ast.AST):
                    yield item
        elif isinstance(value, ast.AST):
            yield value


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, each before what is below it."""
    stack = [node]
    while stack:
        here = stack.pop()
        yield here
        for name in fields(here.__class__):
            value = getattr(here, name, None)
            if value.__class__ is list:
                stack += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                stack.append(value)
