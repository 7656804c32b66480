"""`BACKENDS="a b"` and `WITHOUT="x y"`: a part of an image, under a name of its own, so that nothing is mistaken.

It is the same recipe with fewer venvs, or without wheels that are compiled from source (`WITHOUT=`), which take hours
on a small machine or whose source is out of reach. What is rendered for it goes into build/, since nobody commits it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from lockstep.errors import LockstepError
from lockstep.matrix import Matrix, Narrowed

LEFT_OUT = "left out by WITHOUT="
"""What audits, probes and explanations say of a package that an image was built without."""


@dataclass(frozen=True)
class Narrowing:
    """What a user keeps of an image: only these backends (none named: all), without these packages."""

    backends: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @classmethod
    def parse(cls, backends: str = "", without: str = "") -> Narrowing:
        """Read `BACKENDS=` and `WITHOUT=`: names separated by commas or spaces, packages in any spelling."""
        packages = {str(canonicalize_name(name)) for name in parse_names(without)}
        return cls(tuple(parse_names(backends)), tuple(sorted(packages)))

    def sentence(self, image: str) -> str:
        """Return what this keeps of an image, in words."""
        words = [f"only {', '.join(self.backends)}"] if self.backends else []
        words += [f"without {', '.join(self.without)}"] if self.without else []
        return ", ".join((f"of {image}", *words))

    def __bool__(self) -> bool:
        return bool(self.backends or self.without)


def narrow(matrix: Matrix, image: str, what: Narrowing) -> tuple[Matrix, str]:
    """Return the matrix with the narrowed image in it, and that image's name.

    The name is IMAGE-BACKEND-BACKEND-without-PACKAGE-PACKAGE, backends in IMAGE's order, packages sorted. All of an
    image's backends, or none, and no package left out, is the image itself. LockstepError where IMAGE lacks one of the
    backends, or where a package is none that can be left out of it.
    """
    whole = matrix.images[image]
    if not what:
        return matrix, image
    if isinstance(whole, Narrowed):
        raise LockstepError(
            f"{image} is a part of {whole.of} already", where="IMAGE", fix=f"say IMAGE={whole.of} with what is wanted"
        )
    for name in what.backends:
        if name not in whole.backends:
            raise LockstepError(
                f'image {image} has no backend "{name}"',
                where="BACKENDS",
                fix=f"name some of {', '.join(whole.backends)}",
            )
    kept = [name for name in whole.backends if name in what.backends] or whole.backends
    _check_without(matrix, image, kept, what)
    if kept == whole.backends and not what.without:
        return matrix, image
    offered = {package for name in kept for package in matrix.backends[name].optional}
    words = [f"only {', '.join(kept)}"] if kept != whole.backends else []
    words += [f"without {', '.join(what.without)}"] if what.without else []
    fewer = Narrowed(
        backends=kept,
        with_=[package for package in whole.with_ if package in offered and package not in what.without],
        description="; ".join((whole.description or image, *words)),
        of=image,
        without=list(what.without),
    )
    name = _name(image, kept if kept != whole.backends else [], what.without)
    asked = "BACKENDS" if what.backends else "WITHOUT"
    if name in matrix.images:
        raise LockstepError(f"there is an image {name} already", where=asked, fix=f"build that, or rename {image}")
    if list(_readings(matrix, name)) != [(image, tuple(fewer.backends), what.without)]:
        raise LockstepError(
            f"the name {name} could be read as another part of an image",
            where=asked,
            fix="rename one of its parts",
        )
    return matrix.model_copy(update={"images": {**matrix.images, name: fewer}}), name


def with_narrowed(matrix: Matrix, name: str) -> Matrix:
    """Return the matrix with the image `name` in it where that is the name of a narrowed one, else as it is."""
    image, what = split_name(matrix, name)
    return narrow(matrix, image, what)[0] if what else matrix


def split_name(matrix: Matrix, name: str) -> tuple[str, Narrowing]:
    """Return the image of versions.yaml that `name` is a part of, and which part; `name` itself where it is none."""
    if name not in matrix.images:
        for image, kept, without in _readings(matrix, name):
            return image, Narrowing(kept, without)
    return name, Narrowing()


def removable(matrix: Matrix, image: str, backends: list[str]) -> list[str]:
    """Return the packages that WITHOUT= may name: compiled from source, and in one of those venvs of the image.

    That is what the locks say too: a lock holds exactly the compiled packages that its backend names (lock.outside_of).
    """
    chosen, found = matrix.images[image].with_, set()
    for name in backends:
        backend = matrix.backends[name]
        held = {*backend.compile, *(package for package in backend.optional if package in chosen)}
        found |= {item for item in held if any(item not in matrix.left_out(name, arch) for arch in matrix.targets())}
    return sorted(found)


def told(matrix: Matrix, image: str) -> dict[str, object]:
    """Return what records say of a narrowed image: which it is a part of, and what is missing. Nothing of a whole."""
    part = matrix.images[image]
    if not isinstance(part, Narrowed):
        return {}
    missing = [name for name in matrix.images[part.of].backends if name not in part.backends]
    return {"part": {"of": part.of, "without_backends": missing, "without": part.without}}


def left_out_module(matrix: Matrix, image: str, backend: str, module: str) -> str:
    """Return the package that a module of a venv belongs to and that the image was built without, or "".

    A module is a package's where it is named like it, or lies in what `compile:` says that the package imports. Of
    `a, b`, as `imports:` may say, either may be the package's.
    """
    chosen = matrix.images[image]
    if not isinstance(chosen, Narrowed):
        return ""
    for package in sorted(chosen.not_carried(matrix.backends[backend]) & set(chosen.without)):
        if any(_is_of(matrix, package, name.strip()) for name in module.split(",")):
            return package
    return ""


def blamed(matrix: Matrix, image: str, backend: str, said: str) -> str:
    """Return the package left out by WITHOUT= whose absence an import's error names, or "".

    said: what Python wrote to stderr: it names a module that is not there, or a distribution without metadata.
    """
    for module in re.findall(r"No module named '([\w.]+)'", said):
        if package := left_out_module(matrix, image, backend, module):
            return package
    for name in re.findall(r"No package metadata was found for ([\w.-]+)", said):
        if left_out_module(matrix, image, backend, name.replace("-", "_")) == canonicalize_name(name):
            return str(canonicalize_name(name))
    return ""


def parse_names(text: str) -> list[str]:
    """Read a list of names separated by commas or spaces."""
    return [name for name in re.split(r"[\s,]+", text) if name]


def _check_without(matrix: Matrix, image: str, backends: list[str], what: Narrowing) -> None:
    possible = removable(matrix, image, backends)
    for package in what.without:
        if package in possible:
            continue
        of = f"{image} with {', '.join(backends)}" if what.backends else image
        fault = f"it is not in {of}" if package in matrix.compile else "it is not compiled from source"
        raise LockstepError(
            f"{package} cannot be left out of {of}: {fault}",
            where="WITHOUT",
            fix=f"name some of {', '.join(possible)}" if possible else f"leave WITHOUT= away: {of} compiles nothing",
        )


def _name(image: str, backends: list[str], without: tuple[str, ...]) -> str:
    return "-".join((image, *backends, *(("without", *without) if without else ())))


def _readings(matrix: Matrix, name: str) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Yield each image with the backends and the packages to leave out that narrowing would call `name`."""
    # Names hold hyphens themselves, so the name is compared with what narrowing would call it.
    for image, whole in matrix.images.items():
        if isinstance(whole, Narrowed) or not name.startswith(f"{image}-"):
            continue
        mates = "".join(f"(?P<b{number}>-{re.escape(mate)})?" for number, mate in enumerate(whole.backends))
        packages = removable(matrix, image, whole.backends)
        left = "".join(f"(?P<p{number}>-{re.escape(package)})?" for number, package in enumerate(packages))
        match = re.fullmatch(f"{re.escape(image)}{mates}(?P<without>-without(?=-){left})?", name)
        if match is None:
            continue
        kept = tuple(mate for number, mate in enumerate(whole.backends) if match[f"b{number}"])
        without = tuple(package for number, package in enumerate(packages) if match[f"p{number}"])
        if kept != tuple(whole.backends) and (kept or without):
            yield image, kept or tuple(whole.backends), without


def _is_of(matrix: Matrix, package: str, module: str) -> bool:
    if canonicalize_name(module.partition(".")[0]) == package:
        return True
    declared = matrix.compile[package].imports
    return any(module == name or module.startswith(f"{name}.") for name in declared)
