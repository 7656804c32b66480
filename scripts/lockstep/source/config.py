"""What the downstream code says about itself: which of its classes and functions stand beside or for the package's."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from lockstep.errors import LockstepError

FILE = "lockstep-source.toml"
_KEYS = ("tool", "lockstep", "check-source")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class WorkerExtension(_Strict):
    """A downstream class that the package mixes into one of its own: no name of it may be one of the target's."""

    cls: Annotated[str, Field(alias="class", description="pkg.mod:Class of the downstream tree")]
    target: Annotated[str, Field(description="the package's class that it is mixed into")]


class Proxy(_Strict):
    """A downstream object that the package uses in place of one of its own."""

    cls: Annotated[str, Field(alias="class", description="pkg.mod:Class of the downstream tree")]
    stands_for: Annotated[str, Field(description="the package's class or interface")]


class Mirror(_Strict):
    """A downstream copy of an upstream function or class, to be taken over again when the original changes."""

    function: Annotated[str, Field(description="pkg.mod:function, pkg.mod:Class.method or pkg.mod:Class downstream")]
    upstream: Annotated[str, Field(description="the original in the package")]
    as_of: Annotated[str, Field(description="the version it was last compared with; instead of --from")] = ""
    exact: Annotated[bool, Field(description="the copy must equal the original, docstrings and annotations aside")] = (
        False
    )


class Accepted(_Strict):
    """A finding that is known and right. It is listed apart; one that matches nothing is itself a finding."""

    kind: str
    symbol: Annotated[str, Field(description="as the report names it; `*` at the end stands for anything")]
    path: Annotated[str, Field(description="the file, or a folder above it")] = ""
    package: Annotated[str, Field(description="the package it is about; then it must match something")] = ""
    why: Annotated[str, Field(min_length=1)]
    until: datetime.date | None = None


class SourceConfig(_Strict):
    """The table `[tool.lockstep.check-source]` of pyproject.toml, or the whole of lockstep-source.toml."""

    worker_extensions: tuple[WorkerExtension, ...] = ()
    proxies: tuple[Proxy, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    watch: Annotated[
        tuple[str, ...], Field(description="functions, classes or fields of the package whose defaults matter here")
    ] = ()
    accepted: tuple[Accepted, ...] = ()
    exclude: Annotated[tuple[str, ...], Field(description="folders and files below the tree that are not checked")] = ()

    @field_validator("watch", "exclude", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    def about(self, is_ours: Callable[[str], bool], package: str) -> SourceConfig:
        """Return the part that is about one package; `is_ours` tells whether a dotted name belongs to it."""

        def ours(dotted: str) -> bool:
            return is_ours(dotted.replace(":", "."))

        return self.model_copy(
            update={
                "worker_extensions": tuple(item for item in self.worker_extensions if ours(item.target)),
                "proxies": tuple(item for item in self.proxies if ours(item.stands_for)),
                "mirrors": tuple(item for item in self.mirrors if ours(item.upstream)),
                "watch": tuple(item for item in self.watch if ours(item)),
                "accepted": tuple(item for item in self.accepted if item.package in {"", package}),
            }
        )


def load_config(root: Path, path: Path | None = None) -> tuple[SourceConfig, str]:
    """Return the configuration for a tree, and the file it stands in (relative to `root` where it lies below it).

    path names the file; else it is lockstep-source.toml or pyproject.toml in the tree or the nearest folder above it.
    LockstepError where the file is no TOML or has a key that is not known.
    """
    found = path or _nearest(root)
    if found is None:
        return SourceConfig(), FILE
    where = str(found.relative_to(root)) if found.is_relative_to(root) else str(found)
    try:
        table: Any = tomllib.loads(found.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LockstepError("there is no such file", where=where, fix="check --config") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LockstepError(f"cannot be read: {error}", where=where, fix="correct the file") from None
    if found.name == "pyproject.toml":
        for key in _KEYS:
            table = table.get(key, {}) if isinstance(table, dict) else {}
    try:
        return SourceConfig.model_validate(table), where
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise LockstepError(f"{key}: {first['msg']}", where=where, fix="see docs/check-source.md") from None


def _nearest(root: Path) -> Path | None:
    folder = root if root.is_dir() else root.parent
    for here in (folder, *folder.parents):
        if (here / FILE).is_file():
            return here / FILE
        project = here / "pyproject.toml"
        if project.is_file():
            return project if _has_table(project) else None
        if (here / ".git").exists():
            return None
    return None


def _has_table(path: Path) -> bool:
    # Only a file that speaks of this check is read, so that another tool's broken table is not our error.
    return ".".join(_KEYS) in path.read_text(encoding="utf-8", errors="replace")
