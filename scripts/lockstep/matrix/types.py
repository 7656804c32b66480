"""The scalar types of versions.yaml: quoted versions, requirements, names."""

from __future__ import annotations

from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion
from packaging.version import Version as Pep440
from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Model(BaseModel):
    """Base of every part of the matrix: frozen, no unknown keys, no silent conversion of a number to text."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


def _version(text: str) -> str:
    try:
        Pep440(text)
    except InvalidVersion:
        raise ValueError(f'"{text}" is not a version (PEP 440)') from None
    return text


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f'"{text}" is not a requirement (PEP 508): {str(error).splitlines()[0]}') from None
    return text


def _package(text: str) -> str:
    if canonicalize_name(text) != text:
        raise ValueError(f'"{text}" is not a canonical package name; write "{canonicalize_name(text)}"')
    return text


Version = Annotated[str, AfterValidator(_version)]
"""One exact version, always quoted: YAML reads 2.10 as the number 2.1."""

Req = Annotated[str, AfterValidator(_requirement)]
"""A PEP 508 requirement."""

Package = Annotated[str, AfterValidator(_package)]
"""A package name as the index normalises it (PEP 503)."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", max_length=40)]
"""A name of ours (backend, image): part of a path, a stage name and an image reference, so lower case and short."""

Why = Annotated[str, Field(min_length=10)]
"""The reason of an override, exclusion, hold or cap: whoever removes it must know what comes back."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
