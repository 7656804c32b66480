"""Where versions.yaml pins a package, and how to move a pin without touching anything else of the file.

ruamel.yaml finds the scalar; only its characters are replaced. To load and dump the file again would keep comments and
most quotes, but lay out every flow mapping anew, and a bump must be a diff of one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, SequenceNode

from lockstep.compile.spec import SdistSource
from lockstep.errors import LockstepError
from lockstep.index import files_of
from lockstep.matrix import Matrix

Key = tuple[str | int, ...]


@dataclass(frozen=True, order=True)
class Pin:
    """A place that names one exact version. backend is empty where several may share it (a line, a compiled wheel)."""

    key: Key
    package: str
    version: str
    backend: str = ""


@dataclass(frozen=True)
class Edit:
    """A scalar of versions.yaml in which `before` becomes `after`, and why that was asked for."""

    key: Key
    before: str
    after: str
    why: str

    @property
    def where(self) -> str:
        """Return the key as people write it: backends.vllm.requires[0]."""
        text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.key)
        return text.removeprefix(".")


def exact_version(text: str) -> str | None:
    """Return the version of a requirement `name==version`, else None."""
    specifiers = list(Requirement(text).specifier)
    if len(specifiers) == 1 and specifiers[0].operator in ("==", "===") and "*" not in specifiers[0].version:
        return specifiers[0].version
    return None


def pins_of(matrix: Matrix, package: str, backends: Sequence[str]) -> list[Pin]:
    """Return every pin of a package that these backends look at, their own ones first."""
    found = [pin for name in backends for pin in _own_pins(matrix, package, name)]
    for line in dict.fromkeys(matrix.backends[name].line for name in backends):
        if version := matrix.lines[line].get(package):
            found.append(Pin(("lines", line, package), package, version))
    carried = {item for name in backends for item in (*matrix.backends[name].compile, *matrix.backends[name].optional)}
    if package in carried:
        found.append(Pin(("compile", package, "version"), package, matrix.compile[package].version))
    return found


def _own_pins(matrix: Matrix, package: str, name: str) -> Iterator[Pin]:
    backend = matrix.backends[name]
    key: Key = ("backends", name)
    texts: list[tuple[Key, str]] = [((*key, "requires", number), text) for number, text in enumerate(backend.requires)]
    for number, item in enumerate(backend.overrides):
        texts.append(((*key, "overrides", number, "requirement"), item.requirement))
    for number, cap in enumerate(backend.constraints):
        texts.append(((*key, "constraints", number, "requirement"), cap.requirement))
    for place, text in texts:
        version = exact_version(text)
        if version is not None and canonicalize_name(Requirement(text).name) == package:
            yield Pin(place, package, version, name)
    for number, hold in enumerate(backend.holds):
        if hold.package == package and hold.version is not None:
            yield Pin((*key, "holds", number, "version"), package, hold.version, name)


def edits_for(matrix: Matrix, pin: Pin, to: str, why: str) -> list[Edit]:
    """Return the edits that move a pin. A compiled package's source hash moves with it.

    LockstepError where its source is a commit, which only a person can choose.
    """
    edits = [Edit(pin.key, pin.version, to, why)] if pin.version != to else []
    if pin.key[0] == "compile" and edits:
        source = matrix.compile[pin.package].source
        if not isinstance(source, SdistSource):
            raise LockstepError(
                "its source is a commit, which does not follow from a version",
                where=f"versions.yaml compile.{pin.package}.source",
                fix="write the new version and commit there, then `make lock-wheels` and `make lock`",
            )
        files = [item for item in files_of(pin.package, to) if item.filename.endswith(".tar.gz")]
        if not files or not files[0].sha256:
            raise LockstepError(f"{pin.package} {to} has no source distribution", fix="choose another version")
        edits.append(
            Edit(("compile", pin.package, "source", "sdist_sha256"), source.sdist_sha256, files[0].sha256, why)
        )
    return edits


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Return the text of versions.yaml with the edits made. LockstepError where a key or its old value is not there."""
    spans: dict[tuple[int, int], str] = {}
    tree: Any = YAML(typ="rt").compose(text)
    for edit in edits:
        node = _find(tree, edit)
        span = (node.start_mark.index, node.end_mark.index)
        old = spans.get(span, text[span[0] : span[1]])
        pattern = rf"(?<![0-9A-Za-z.]){re.escape(edit.before)}(?![0-9A-Za-z.])"
        new, count = re.subn(pattern, edit.after, old)
        if count != 1:
            raise LockstepError(
                f"does not hold {edit.before} once", where=f"versions.yaml {edit.where}", fix="edit it by hand"
            )
        spans[span] = new
    for (start, end), new in sorted(spans.items(), reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _find(node: Any, edit: Edit) -> Any:
    for part in edit.key:
        children: list[Any] = []
        if isinstance(node, MappingNode):
            children = [value for key, value in node.value if key.value == str(part)]
        elif isinstance(node, SequenceNode) and isinstance(part, int):
            children = node.value[part : part + 1]
        if not children:
            raise LockstepError("there is no such key", where=f"versions.yaml {edit.where}", fix="edit it by hand")
        node = children[0]
    return node
