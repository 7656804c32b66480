"""Copies of upstream functions: whether the original changed, compared as syntax trees."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Iterator

from lockstep.source.config import Mirror
from lockstep.source.findings import Finding
from lockstep.source.model import Function
from lockstep.source.values import ClassV, FuncV
from lockstep.source.world import World

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class _Bare(ast.NodeTransformer):
    """Takes away what does not run: docstrings, annotations, type-checking imports; and messages keep their place."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if node.value is None:
            return None
        return ast.Assign([node.target], node.value, lineno=node.lineno)

    def _definition(self, node: Definition) -> Definition:
        self.generic_visit(node)
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        node.body = node.body or [ast.Pass()]
        if isinstance(node, Function):
            node.returns = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Definition:
        return self._definition(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Definition:
        return self._definition(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        # A class's annotations are its fields, so they stay there.
        for item in node.body:
            if isinstance(item, Function):
                self.visit(item)
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        node.body = node.body or [ast.Pass()]
        return node


def bare(node: Definition) -> list[str]:
    """Return a definition's lines as Python writes them, without what does not run: equal code gives equal lines."""
    stripped = _Bare().visit(copy.deepcopy(node))
    stripped.decorator_list = []
    stripped.name = "_"  # a copy may go by another name
    if isinstance(stripped, ast.ClassDef):
        stripped.bases, stripped.keywords = [], []
    return ast.unparse(ast.fix_missing_locations(stripped)).splitlines()


def find(world: World, dotted: str) -> tuple[Definition, str] | None:
    """Return a function's or class's definition and its `file:line`, or None where there is none."""
    for value in world.symbol(dotted):
        if isinstance(value, FuncV):
            return value.node, f"{value.module.path}:{value.node.lineno}"
        if isinstance(value, ClassV):
            return value.info.node, f"{value.info.module.path}:{value.info.node.lineno}"
    return None


def drift(to: World, frm: World | None, mirror: Mirror, where: str) -> Iterator[Finding]:
    """Yield a finding where the original changed and the copy did not follow.

    A copy has followed when it equals the new original, or when it has every line that the change brought and none
    that it took away. `exact` compares the copy with the original instead. A mirror whose parts are not there is a
    finding.
    """
    ours = find(to, mirror.function)
    if ours is None:
        yield Finding(
            "config", where, 0, mirror.function, f"there is no {mirror.function}", "correct the configuration"
        )
        return
    node, place = ours
    path, _, line = place.rpartition(":")
    now = find(to, mirror.upstream)
    was = find(frm, mirror.upstream) if frm is not None else None
    if now is None:
        what = f"the original {mirror.upstream} of this copy is gone" if was else f"there is no {mirror.upstream}"
        yield Finding("mirror", path, int(line), mirror.upstream, what, "see what took its place, and copy that")
        return
    new, mine = bare(now[0]), bare(node)
    if mirror.exact:
        if mine != new:
            yield _finding(mirror, path, int(line), f"differs from its original at {now[1]}", mine, new)
        return
    if was is None:
        return
    old = bare(was[0])
    if new in (old, mine) or _followed(mine, old, new):
        return
    changed = sum(line[:1] in "+-" for line in difflib.unified_diff(old, new, lineterm="", n=0)) - 2
    what = f"its original {mirror.upstream} changed in {changed} lines (now at {now[1]}), and this copy did not follow"
    yield _finding(mirror, path, int(line), what, old, new)


def _followed(mine: list[str], old: list[str], new: list[str]) -> bool:
    have, before, after = ({line.strip() for line in lines} for lines in (mine, old, new))
    came, went = after - before, before - after
    return came <= have and not went & have


def _finding(mirror: Mirror, path: str, line: int, what: str, left: list[str], right: list[str]) -> Finding:
    detail = "\n".join(difflib.unified_diff(left, right, "before", "after", lineterm="", n=2))
    return Finding(
        "mirror", path, line, mirror.upstream, what, "take the change over, or set `as_of` once it is judged", detail
    )
