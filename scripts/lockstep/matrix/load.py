"""Read versions.yaml, and say what is wrong with it by file, line and key."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from lockstep.errors import LockstepError
from lockstep.matrix.checks import Key, problems
from lockstep.matrix.models import Matrix
from lockstep.paths import VERSIONS

_FIX = "correct it (versions.schema.json describes every key)"


def load(path: Path = VERSIONS) -> Matrix:
    """Return the validated matrix. LockstepError names file, line and key of the first faults (three at most)."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LockstepError(
            f"cannot be read ({error.strerror})", where=str(path), fix="run in a Lockstep checkout"
        ) from None
    except UnicodeDecodeError:
        raise LockstepError("is not UTF-8 text", where=str(path), fix="save it as UTF-8") from None
    return parse(text, path.name)


def parse(text: str, name: str = "versions.yaml") -> Matrix:
    """Return the matrix in `text`; `name` is the file's name in messages."""
    data = _tree(text, name, "safe")
    if not isinstance(data, dict):
        raise LockstepError("holds no mapping", where=name, fix=_FIX)
    try:
        matrix = Matrix.model_validate(data)
    except ValidationError as error:
        # Only a fault needs line numbers, which ruamel's slower round-trip loader keeps.
        tree = _tree(text, name, "rt")
        faults = [_fault(tree, name, dict(item)) for item in error.errors()[:3]]
        raise LockstepError("\n  also ".join(faults), fix=_FIX) from None
    for problem in problems(matrix):
        raise LockstepError(problem.what, where=_where(_tree(text, name, "rt"), name, problem.key), fix=problem.fix)
    return matrix


def _tree(text: str, name: str, kind: str) -> Any:
    try:
        return YAML(typ=kind).load(text)
    except MarkedYAMLError as error:
        line = (error.problem_mark.line + 1) if error.problem_mark else 1
        what = (error.problem or "cannot be parsed").split(" with value")[0]  # ruamel quotes whole blocks
        raise LockstepError(f"is not YAML: {what}", where=f"{name}:{line}", fix="correct the line") from None


def digest(path: Path = VERSIONS) -> str:
    """Return the SHA-256 of the file, which provenance records."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _fault(tree: Any, name: str, item: dict[str, Any]) -> str:
    key: Key = tuple(item["loc"])
    value, kind = item.get("input"), item["type"]
    if kind == "string_type" and isinstance(value, int | float | datetime.date) and not isinstance(value, bool):
        what = f'YAML reads {value} as a {_kind(value)}; quote it (a version "2.10" is not the number 2.1)'
    elif kind == "extra_forbidden":
        what = "is not a known key"
    elif kind == "missing":
        what = "is missing"
    else:
        what = str(item["msg"]).removeprefix("Value error, ")
    return f"{_where(tree, name, key)}: {what}"


def _kind(value: object) -> str:
    return "date" if isinstance(value, datetime.date) else "number"


def _where(tree: Any, name: str, key: Key) -> str:
    """Return `file:line key.path`: the line of the deepest part of the key that the file holds."""
    line, node = 1, tree
    for part in key:
        try:
            position = node.lc.key(part) if hasattr(node, "keys") else node.lc.item(part)
            line, node = position[0] + 1, node[part]
        except (KeyError, IndexError, AttributeError, TypeError):
            break
    return f"{name}:{line} {'.'.join(str(part) for part in key)}"
