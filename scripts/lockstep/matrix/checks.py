"""What must hold between the parts of versions.yaml, beyond the shape of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lockstep.matrix.models import Backend, Matrix

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """A fault at a key path of versions.yaml: what is wrong, and what to do."""

    key: Key
    what: str
    fix: str


def problems(matrix: Matrix) -> Iterator[Problem]:
    """Yield every fault that the models by themselves cannot see."""
    for name, image in matrix.images.items():
        for number, mate in enumerate(image.backends):
            if mate not in matrix.backends:
                yield Problem(
                    ("images", name, "backends", number),
                    f'there is no backend "{mate}"',
                    f"write one of {', '.join(matrix.backends)}, or add it under backends",
                )
        if len(set(image.backends)) != len(image.backends):
            yield Problem(("images", name, "backends"), "a backend is named twice", "name each once")
        offered = {
            item for mate in image.backends if mate in matrix.backends for item in matrix.backends[mate].optional
        }
        for number, package in enumerate(image.with_):
            if package not in offered:
                yield Problem(
                    ("images", name, "with", number),
                    f'no backend of this image has "{package}" under optional',
                    f"write one of {', '.join(sorted(offered))}" if offered else "leave it out",
                )
    yield from _arch_differences(matrix)
    for name, backend in matrix.backends.items():
        yield from _backend(matrix, ("backends", name), backend)


def _arch_differences(matrix: Matrix) -> Iterator[Problem]:
    for number, item in enumerate(matrix.arch_differences):
        key: Key = ("arch_differences", number)
        whole = item.what in ("setting", "deb")
        if whole == bool(item.backends):
            fault = "belongs to the whole image, not to a venv" if whole else "names no venv that it is about"
            fix = "leave backends out" if whole else "add backends"
            yield Problem(key, f"the {item.what} {item.name} {fault}", fix)
        for place, mate in enumerate(item.backends):
            if mate not in matrix.backends:
                names = ", ".join(matrix.backends)
                yield Problem((*key, "backends", place), f'there is no backend "{mate}"', f"write one of {names}")
        if item.only_on is not None and item.only_on not in matrix.arches:
            yield Problem((*key, "only_on"), f"{item.only_on} is not among arches", "remove the entry")


def _backend(matrix: Matrix, key: Key, backend: Backend) -> Iterator[Problem]:
    pins = matrix.lines.get(backend.line)
    if pins is None:
        yield Problem((*key, "line"), f'there is no line "{backend.line}"', f"write one of {', '.join(matrix.lines)}")
        return
    yield from _outside(matrix, key, backend)
    groups = [
        ("requires", list(enumerate(backend.requires))),
        ("overrides", [(number, item.requirement) for number, item in enumerate(backend.overrides)]),
        ("constraints", [(number, item.requirement) for number, item in enumerate(backend.constraints)]),
    ]
    for part, texts in groups:
        for number, text in texts:
            requirement = Requirement(text)
            pin = pins.get(canonicalize_name(requirement.name))
            if pin is not None and not requirement.specifier.contains(pin, prereleases=True):
                yield Problem(
                    (*key, part, number),
                    f'"{text}" contradicts the line "{backend.line}", which pins {requirement.name} to {pin}',
                    "change the requirement, or put the backend on another line",
                )
            if requirement.url is not None:
                # The address is not repeated: it may hold a password.
                yield Problem(
                    (*key, part, number),
                    f"the requirement of {requirement.name} names an address",
                    "declare the package under compile or mirror; indexes come from the environment",
                )
    for number, hold in enumerate(backend.holds):
        if hold.version is None and hold.not_past is None:
            yield Problem((*key, "holds", number), "holds nothing", "give version, not_past or both")


def _outside(matrix: Matrix, key: Key, backend: Backend) -> Iterator[Problem]:
    """Check the packages that no index serves: each is declared once, and nothing asks for another version of it."""
    seen: set[str] = set()
    for part, known in (("compile", matrix.compile), ("optional", matrix.compile), ("mirror", matrix.mirror)):
        for number, package in enumerate(getattr(backend, part)):
            where = "mirror" if part == "mirror" else "compile"
            if package not in known:
                names = f"write one of {', '.join(known)}, or declare" if known else "declare"
                yield Problem((*key, part, number), f'{where} declares no "{package}"', f"{names} it under {where}")
            if package in seen:
                yield Problem((*key, part, number), f'"{package}" is named twice', "name it once")
            seen.add(package)
    for number, text in enumerate(backend.requires):
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        spec = (matrix.mirror if name in backend.mirror else matrix.compile).get(name)
        if name in seen and spec is not None and not requirement.specifier.contains(spec.version, prereleases=True):
            yield Problem(
                (*key, "requires", number),
                f'"{text}" contradicts the declared version {spec.version}',
                "name the package under compile or mirror alone",
            )
