"""Step 4: from matrix and locks to Dockerfiles and the bake file. Pure: no network, no clock."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

from lockstep import runtime_wheel
from lockstep.arch import Arch
from lockstep.base import Role, base_key, base_lock
from lockstep.errors import LockstepError
from lockstep.files import write_text
from lockstep.layers import Layer, plan
from lockstep.lock import Lock, LockedWheel, inputs_of, read_lock
from lockstep.matrix import Matrix, schema
from lockstep.outside import Binding, binding
from lockstep.paths import BUILD, DOCKER, ROOT, STAGES

STAGE_FILES = ("10-base.j2", "20-builder.j2", "30-layers.j2", "40-release.j2")


COMPILED = BUILD / "templates"
"""Templates as bytecode, by the hash of their text: compiling them takes as long as rendering with them."""

NARROWED = "build/narrow"
"""Where the files of a narrowed image lie, relative to the checkout: nobody commits them."""


@dataclass(frozen=True)
class LayerView:
    """A layer as the template sees it."""

    name: str
    venvs: tuple[str, ...]
    lines: tuple[str, ...]
    patched: tuple[str, ...]
    stored: tuple[Binding, ...]
    """Its wheels that no index serves."""


@dataclass(frozen=True)
class ArchView:
    """One architecture of one image as the template sees it."""

    name: str
    docker: str
    platform: str
    uv_platform: str
    runtime_tar: str
    builder_tar: str
    layers: tuple[LayerView, ...]

    @property
    def patched(self) -> bool:
        """Whether any of its layers is patched."""
        return any(layer.patched for layer in self.layers)


@dataclass(frozen=True)
class RuntimeView:
    """The runtime package: its wheel, and the venvs that get it."""

    wheel: str
    venvs: tuple[str, ...]


@dataclass(frozen=True)
class ImageView:
    """An image's own words."""

    name: str
    description: str
    backends: tuple[str, ...]


def render(matrix: Matrix, root: Path = ROOT, *, anew: bool = False) -> dict[Path, str]:
    """Return every generated file and its text: a Dockerfile per image, bake.hcl and versions.schema.json.

    anew: make the schema even where the file says that it is of the present models, so that an edit of it is seen.
    LockstepError where a lock is missing, damaged, or older than what versions.yaml asks for.
    """
    sources = _sources(matrix, matrix.backends, root)
    files = {root / "images" / name / "Dockerfile": _dockerfile(sources, name) for name in matrix.images}
    files[root / "bake.hcl"] = _bake(sources, list(matrix.images), "images")
    path = root / "versions.schema.json"
    files[path] = schema.text_of() if anew else schema.schema(path)
    return files


def render_narrowed(matrix: Matrix, name: str, root: Path = ROOT) -> dict[Path, str]:
    """Return the Dockerfile and the bake file of one image that narrow() has added; they lie below build/."""
    sources, folder = _sources(matrix, matrix.images[name].backends, root), root / NARROWED / name
    return {
        folder / "Dockerfile": _dockerfile(sources, name),
        folder / "bake.hcl": _bake(sources, [name], NARROWED),
    }


def _bake(sources: _Sources, images: list[str], folder: str) -> str:
    matrix = sources.matrix
    return sources.templates.get_template("bake.hcl.j2").render(
        images=images,
        folder=folder,
        arches=[_arch(sources, arch, ()) for arch in matrix.targets()],
        epoch=matrix.epoch,
        default_target=f"{images[0]}-{matrix.arches[0]}",
    )


def write(files: dict[Path, str]) -> list[Path]:
    """Write what differs; return the paths written."""
    return [path for path, text in files.items() if write_text(path, text)]


def differing(files: dict[Path, str]) -> list[Path]:
    """Return the paths whose text on disk is not what would be written now."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def _templates() -> Environment:
    # Guillemets occur in no shell, Dockerfile or HCL text, so nothing of those can be taken for a template's own.
    try:
        COMPILED.mkdir(parents=True, exist_ok=True)
        # jinja2 writes what it compiles, and raises where it cannot: another user may have made the folder.
        compiled = FileSystemBytecodeCache(str(COMPILED)) if os.access(COMPILED, os.W_OK) else None
    except OSError:  # a checkout that cannot be written to
        compiled = None
    return Environment(
        bytecode_cache=compiled,
        loader=FileSystemLoader(STAGES),
        undefined=StrictUndefined,
        block_start_string="«%",
        block_end_string="%»",
        variable_start_string="«",
        variable_end_string="»",
        comment_start_string="«#",
        comment_end_string="#»",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _fresh(matrix: Matrix, name: str, arch: Arch, root: Path) -> Lock:
    lock = read_lock(name, arch, root)
    if lock.inputs != inputs_of(matrix, name, arch):
        raise LockstepError(
            "versions.yaml has changed since this lock was made",
            where=f"images/{name}/lock.{arch}.txt",
            fix=f"run `make lock BACKEND={name}`",
        )
    return lock


def _dockerfile(sources: _Sources, name: str) -> str:
    matrix = sources.matrix
    image = matrix.images[name]
    arches = [
        _arch(sources, arch, plan(matrix, name, {mate: sources.locks[mate, arch] for mate in image.backends}))
        for arch in matrix.targets()
    ]
    context = {
        "image": ImageView(name, image.description, tuple(image.backends)),
        "arches": arches,
        "runtime": RuntimeView(f"build/wheels/{runtime_wheel.filename()}", runtime_venvs(matrix, image.backends)),
        "cuda": matrix.bases.cuda,
        "epoch": matrix.epoch,
        "uv_requirement": sources.uv,
        "env": image_env(image.backends),
        "labels": _labels(matrix, name),
    }
    text = "".join(sources.templates.get_template(file).render(context) for file in STAGE_FILES)
    check_arguments(text, f"images/{name}/Dockerfile")
    return text


def _arch(sources: _Sources, arch: Arch, layers: tuple[Layer, ...]) -> ArchView:
    return ArchView(
        name=arch.value,
        docker=arch.docker,
        platform=arch.platform,
        uv_platform=arch.manylinux,
        runtime_tar=sources.base_tar(arch, Role.RUNTIME),
        builder_tar=sources.base_tar(arch, Role.BUILDER),
        layers=tuple(_layer(sources, layer, arch) for layer in layers),
    )


def runtime_venvs(matrix: Matrix, backends: list[str]) -> tuple[str, ...]:
    """Return the venvs that get the runtime package: those of a line with torch, and those that ask for it."""
    return tuple(
        name
        for name in backends
        if matrix.backends[name].runtime or (matrix.backends[name].runtime is None and _has_torch(matrix, name))
    )


def _has_torch(matrix: Matrix, name: str) -> bool:
    return "torch" in matrix.lines[matrix.backends[name].line]


@dataclass(frozen=True)
class _Sources:
    """What every image of one rendering shares. Each fact is worked out once, since six images ask for it."""

    matrix: Matrix
    root: Path
    templates: Environment
    locks: dict[tuple[str, Arch], Lock]
    patched: frozenset[str]
    uv: str
    _tars: dict[tuple[Arch, Role], str] = field(default_factory=dict)
    _bindings: dict[tuple[str, str, Arch], Binding] = field(default_factory=dict)

    def base_tar(self, arch: Arch, role: Role) -> str:
        """Return the path of a base's archive in the build context."""
        if (arch, role) not in self._tars:
            key = base_key(base_lock(arch, role, self.matrix), self.matrix.epoch)
            self._tars[arch, role] = f"build/base/{key}/rootfs.tar"
        return self._tars[arch, role]

    def binding(self, wheel: LockedWheel, arch: Arch) -> Binding:
        """Return how a stage gets a wheel that no index serves."""
        key = (wheel.name, wheel.built_for, arch)
        if key not in self._bindings:
            self._bindings[key] = binding(self.matrix, wheel, arch, self.root)
        return self._bindings[key]


def _sources(matrix: Matrix, backends: Iterable[str], root: Path) -> _Sources:
    return _Sources(
        matrix,
        root,
        _templates(),
        {(name, arch): _fresh(matrix, name, arch, root) for name in backends for arch in matrix.targets()},
        frozenset(path.name for path in (DOCKER / "patches").iterdir() if path.is_dir()),
        uv_requirement(root),
    )


def _layer(sources: _Sources, layer: Layer, arch: Arch) -> LayerView:
    patched = tuple(wheel.name for wheel in layer.wheels if wheel.name in sources.patched)
    outside = {wheel.name: sources.binding(wheel, arch) for wheel in layer.wheels if wheel.origin != "index"}
    lines = tuple(outside[wheel.name].line if wheel.name in outside else wheel.requirement() for wheel in layer.wheels)
    return LayerView(layer.name, layer.venvs, lines, patched, tuple(outside.values()))


def uv_requirement(root: Path) -> str:
    """Return uv's own pin and hashes out of requirements.txt, so that host and image use one uv (CASES D5)."""
    text = (root / "requirements.txt").read_text(encoding="utf-8")
    match = re.search(r"^uv==(?:.*\\\n)*.*$", text, re.MULTILINE)
    if match is None:
        raise LockstepError("does not pin uv", where="requirements.txt", fix="run `make requirements`")
    return re.sub(r" *\\\n *", " ", match[0])


def image_env(backends: list[str]) -> dict[str, str]:
    """Return the whole environment of an image: the allow-list and its values.

    Nothing else may be set: a variable of the image beats the job's own under enroot (CASES B7). The two NVIDIA_ ones
    ask the container runtime for the driver; without them enroot's hook leaves it out.
    """
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        # With one venv `python` is that venv's; with several, which one is meant must be said.
        "PATH": f"/opt/venvs/{backends[0]}/bin:{path}" if len(backends) == 1 else path,
        "LANG": "C.UTF-8",
        "PYTHONNOUSERSITE": "1",
        "UV_NO_SYNC": "1",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }


def _labels(matrix: Matrix, name: str) -> dict[str, str]:
    """Return the labels of the OCI image specification (annotations.md) that hold without a clock or a commit."""
    labels = {
        "org.opencontainers.image.title": name,
        "org.opencontainers.image.description": matrix.images[name].description or name,
        "org.opencontainers.image.vendor": "Lockstep",
    }
    if matrix.source:
        labels["org.opencontainers.image.source"] = matrix.source
    return labels


def check_arguments(text: str, where: str) -> None:
    """Refuse a variable that a stage uses and does not declare: it would expand to nothing (CASES E6).

    An ARG before the first FROM reaches FROM lines only. Inside a stage a name must come from its own ARG or ENV, or
    from a stage that it is made FROM. Text of heredocs and single quotes is the shell's; so is `$(`.
    """
    known_global = {"BUILDARCH", "TARGETARCH", "BUILDPLATFORM", "TARGETPLATFORM"}
    stages: dict[str, set[str]] = {}
    current: set[str] | None = None
    for number, line in instructions(text):
        word, _, rest = line.partition(" ")
        expands = "$" in rest and word in {"FROM", "COPY", "ADD", "ENV", "LABEL", "WORKDIR"}
        used = set(re.findall(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)", rest)) if expands else set()
        scope = known_global if current is None or word == "FROM" else current
        if missing := sorted(used - scope):
            raise LockstepError(
                f"${missing[0]} is used where no ARG declares it, so it expands to nothing",
                where=f"{where}:{number}",
                fix="declare it with ARG in that stage (stages/)",
            )
        if word == "FROM":
            words = [part for part in rest.split() if not part.startswith("--")]
            current = set(stages.get(words[0], set()))
            stages[words[-1]] = current
        elif word in {"ARG", "ENV"}:
            (known_global if current is None else current).update(re.findall(r"(?:^|\s)([A-Za-z_]\w*)(?==|$)", rest))


def instructions(text: str) -> list[tuple[int, str]]:
    """Return (line number, instruction) with continuation lines joined, comments and heredoc bodies left out."""
    found: list[tuple[int, str]] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        joined = line
        while joined.endswith("\\"):
            joined = joined[:-1] + next(lines, (0, ""))[1]
        found.append((number, joined))
        if "<<" in joined and (match := re.search(r"<<-?'?\"?(\w+)", joined)):
            for _, body in lines:
                if body == match[1]:
                    break
    return found
