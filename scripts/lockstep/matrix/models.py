"""What versions.yaml may say: one pydantic model per part. The JSON schema for editors is made from these."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lockstep.arch import Arch
from lockstep.audit.waivers import AuditRules
from lockstep.compile.spec import CompileSpec
from lockstep.matrix.types import Model, Name, Package, Req, Version, Why
from lockstep.mirror.spec import MirrorSpec

ArchName = Literal["x86_64", "aarch64"]


class Bootstrap(Model):
    """The base made from Debian's packages with mmdebstrap."""

    suite: Annotated[str, Field(pattern=r"^[a-z]+$", description="Debian suite, e.g. trixie")]
    packages: Annotated[list[str], Field(description="packages of every image")]
    builder_packages: Annotated[list[str], Field(description="what install stages need on top; not in images")] = []
    compile_packages: Annotated[list[str], Field(description="what compile stages need on top; not in images")] = []


class CudaBase(Model):
    """A base image of NVIDIA's, by digest. It lacks the wanted Python, which uv adds by the hash that uv knows."""

    image: Annotated[str, Field(description="registry/name without tag")]
    tag: str
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$", description="of the multi-platform index")]
    python: Annotated[Version, Field(description="whole version of the standalone Python, as uv lists it")]


class Bases(Model):
    bootstrap: Bootstrap
    cuda: CudaBase | None = None


class Override(Model):
    """Replaces every bound that packages declare on one package."""

    requirement: Req
    why: Why


class Constraint(Model):
    """A bound on a package if something requires it: a cap or a floor."""

    requirement: Req
    why: Why


class Hold(Model):
    """Keeps a package where it is; `not_past` is the last version a relock may ever reach."""

    package: Package
    version: Version | None = None
    not_past: Version | None = None
    why: Why


class Exclude(Model):
    """Leaves a package out of the venv although something requires it."""

    package: Package
    arch: ArchName | None = None
    why: Why


class Older(Model):
    """Declares that a package may be older than on the base branch, which `make lock-diff` otherwise refuses."""

    package: Package
    version: Version
    why: Why


class Backend(Model):
    """One venv: what it requires, on which line, and what is known about its parts."""

    line: Annotated[str, Field(description="key of `lines`: what must be the same for every backend on it")]
    requires: Annotated[list[Req], Field(min_length=1)]
    overrides: list[Override] = []
    constraints: list[Constraint] = []
    holds: list[Hold] = []
    exclude: list[Exclude] = []
    older: list[Older] = []
    compile: Annotated[list[Package], Field(description="keys of `compile` that this venv installs")] = []
    optional: Annotated[
        list[Package], Field(description="keys of `compile` that it installs only in images that say `with`")
    ] = []
    mirror: Annotated[list[Package], Field(description="keys of `mirror` that this venv installs")] = []
    runtime: Annotated[
        bool | None, Field(description="install docker/runtime; by default in every venv whose line has torch")
    ] = None
    imports: Annotated[
        list[str], Field(description="modules that `make probe` imports, each in a fresh process; `a, b`: b after a")
    ] = []
    scripts: Annotated[list[str], Field(description="console scripts that `make probe` runs with --help")] = []


class Image(Model):
    """What one image holds."""

    backends: Annotated[list[Name], Field(min_length=1)]
    with_: Annotated[
        list[Package], Field(alias="with", description="optional compiled packages (keys of `compile`) it carries")
    ] = []
    description: str = ""

    def not_carried(self, backend: Backend) -> frozenset[str]:
        """Return the packages of a backend's lock that the image does not carry."""
        return frozenset(backend.optional) - frozenset(self.with_)


class Narrowed(Image):
    """A part of an image, as BACKENDS= and WITHOUT= make it (lockstep.narrow); versions.yaml cannot say it."""

    of: Name
    without: list[Package] = []

    def not_carried(self, backend: Backend) -> frozenset[str]:
        """Return the packages of a backend's lock that the image does not carry: those left out by WITHOUT= too."""
        return super().not_carried(backend) | ({*backend.compile, *backend.optional} & {*self.without})


class AddOn(Model):
    """A package that images leave out, and that a user may install beside one with /opt/lockstep/add-ons."""

    requirement: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+==\S+$", description="name==version")]
    lines: Annotated[list[str], Field(min_length=1, description="the torch lines that it works with, as major.minor")]
    why: Why


class ArchDifference(Model):
    """Declares one thing that is not the same on both architectures; any other fails `make arch-report`."""

    what: Annotated[
        Literal["package", "source", "script", "patch", "setting", "deb"],
        Field(description="source: what a compiled package is built from; setting: the image's ENV, labels and so on"),
    ]
    name: Annotated[str, Field(min_length=1, description="as the report prints it")]
    backends: Annotated[list[Name], Field(description="the venvs; none for a setting or a deb")] = []
    only_on: Annotated[ArchName | None, Field(description="left out: it is on both, and not the same")] = None
    why: Why


class Downstream(Model):
    """A source tree that uses packages of the venvs; `make bump` checks it against the versions that they move to."""

    path: Annotated[str, Field(min_length=1, description="folder, relative to versions.yaml; ~ is the home folder")]
    packages: Annotated[list[Package], Field(min_length=1, description="packages whose interface it uses")]


class Matrix(Model):
    """All of versions.yaml."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    epoch: Annotated[int, Field(gt=0, description="SOURCE_DATE_EPOCH of every image, seconds since 1970")]
    python: Annotated[str, Field(pattern=r"^3\.\d+$")]
    arches: Annotated[list[ArchName], Field(min_length=1)]
    source: Annotated[str, Field(description="address of the repository, for the image's labels")] = ""
    bases: Bases
    lines: Annotated[
        dict[str, dict[Package, Version]],
        Field(description="a line pins what must be identical in every backend that rides on it"),
    ]
    compile: Annotated[dict[Package, CompileSpec], Field(description="wheels that are built from source")] = {}
    mirror: Annotated[dict[Package, MirrorSpec], Field(description="wheels that no build may depend on fetching")] = {}
    backends: dict[Name, Backend]
    images: dict[Name, Image]
    arch_differences: Annotated[
        list[ArchDifference], Field(description="what differs between the architectures; anything else is a fault")
    ] = []
    add_ons: Annotated[list[AddOn], Field(description="what a user may add; never in an image")] = []
    downstream: Annotated[list[Downstream], Field(description="source trees that `make bump` checks")] = []
    audit: Annotated[AuditRules, Field(description="what `make audit` finds and is right to be there")] = AuditRules()

    def left_out(self, backend: str, arch: Arch) -> frozenset[str]:
        """Return the packages that a backend excludes on an architecture."""
        return frozenset(item.package for item in self.backends[backend].exclude if item.arch in (None, arch.value))

    def targets(self) -> list[Arch]:
        """Return the architectures in the order of the file."""
        return [Arch(name) for name in self.arches]
