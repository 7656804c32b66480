"""What an image holds on one architecture: by the locks and the rendered Dockerfile, and by the built image itself."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lockstep.arch import Arch
from lockstep.archreport.scripts import script_target, wheel_scripts
from lockstep.audit.integrity import PATCHES
from lockstep.audit.layers import merge, scan_image
from lockstep.audit.oci import open_image
from lockstep.audit.tree import Tree
from lockstep.audit.venv import Venv, find_venvs
from lockstep.base import Role, base_lock
from lockstep.compile.spec import CompileSpec, SdistSource
from lockstep.diff import deb_versions, settings_of
from lockstep.lock import Lock, carried, read_lock
from lockstep.matrix import Matrix
from lockstep.patches import declared
from lockstep.paths import ROOT
from lockstep.render import instructions, render_narrowed
from lockstep.ship import digests

Seen = Literal["plan", "image"]
SEEN: tuple[Seen, ...] = ("plan", "image")


@dataclass(frozen=True, order=True)
class Thing:
    """Something that both architectures should have alike. venv is empty for what is the whole image's."""

    what: str
    venv: str
    name: str


@dataclass
class Side:
    """One architecture as the plan or the image shows it.

    facts says of each thing what it is (a version, a target, a value); owners, which package a script or patch belongs
    to; covers, which kinds of thing were looked at.
    """

    arch: Arch
    seen: Seen
    facts: dict[Thing, str] = field(default_factory=dict)
    owners: dict[Thing, str] = field(default_factory=dict)
    covers: frozenset[str] = frozenset()

    def add(self, what: str, venv: str, name: str, value: str, owner: str = "") -> None:
        """Note one thing."""
        thing = Thing(what, venv, name)
        self.facts[thing] = value
        if owner:
            self.owners[thing] = owner


def planned(matrix: Matrix, image: str, *, scripts: bool = False) -> list[Side]:
    """Return what the locks and the rendered Dockerfile of an image say, one side for each architecture.

    scripts: read the console scripts too, from the wheels where they lie; only of wheels that are not the same file on
    every architecture. LockstepError where a lock is missing.
    """
    text = _dockerfile(matrix, image)
    covers = {"package", "source", "patch", "setting", "deb"} | ({"script"} if scripts else set())
    sides = [Side(arch, "plan", covers=frozenset(covers)) for arch in matrix.targets()]
    for venv in matrix.images[image].backends:
        locks = [carried(matrix, image, read_lock(venv, side.arch)) for side in sides]
        for side, lock in zip(sides, locks, strict=True):
            _of_lock(side, matrix, lock)
            if scripts:
                others = {wheel for other in locks if other is not lock for wheel in other.wheels}
                differing = [wheel for wheel in lock.wheels if wheel not in others and wheel.sha256]
                for wheel, found in wheel_scripts(differing):
                    for name, target in found.items():
                        side.add("script", venv, name, target, wheel.name)
    for side in sides:
        for name, value in dockerfile_settings(text, side.arch).items():
            side.add("setting", "", name, value)
        for deb in base_lock(side.arch, Role.RUNTIME, matrix).debs:
            side.add("deb", "", deb_name(deb.name, side.arch), deb.version)
    return sides


def _of_lock(side: Side, matrix: Matrix, lock: Lock) -> None:
    for wheel in lock.wheels:
        side.add("package", lock.backend, wheel.name, wheel.version)
        if wheel.origin == "compile":
            side.add("source", lock.backend, wheel.name, _source(matrix.compile[wheel.name], side.arch), wheel.name)
        for concern, path in declared(wheel.name, wheel.version):
            side.add("patch", lock.backend, f"{wheel.name} {concern} {path}", "declared", wheel.name)


def _source(spec: CompileSpec, arch: Arch) -> str:
    if isinstance(spec.source, SdistSource):
        return f"sdist {spec.source.sdist_sha256[:12]}"
    return f"commit {(spec.source.at(arch) or 'none')[:12]}"


def deb_name(name: str, arch: Arch) -> str:
    """Return a Debian package's name with its own architecture's triplet left open.

    Cross compilers carry it in their names (gcc-14-x86-64-linux-gnu is the gcc-14 of amd64), so it is no difference.
    """
    return name.replace(arch.multiarch.replace("_", "-"), "TRIPLET")


def _dockerfile(matrix: Matrix, image: str, root: Path = ROOT) -> str:
    path = root / "images" / image / "Dockerfile"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    files = render_narrowed(matrix, image)
    return next(text for where, text in files.items() if where.name == "Dockerfile")


def dockerfile_settings(text: str, arch: Arch) -> dict[str, str]:
    """Return what a rendered Dockerfile's last stage sets for one architecture, under the names of diff.settings_of."""
    stages: dict[str, tuple[str, list[str]]] = {}
    last = ""
    for _, line in instructions(text):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            words = [part for part in rest.split() if not part.startswith("--")]
            last = words[-1]
            stages[last] = (words[0].replace("${TARGETARCH}", arch.docker).replace("${BASE}", "bootstrap"), [])
        elif last:
            stages[last][1].append(line)
    chain = []
    while last in stages:
        chain.append(stages[last][1])
        last = stages[last][0]
    found: dict[str, str] = {}
    for line in (line for lines in reversed(chain) for line in lines):
        found.update(_settings(line))
    return found


def _settings(line: str) -> Iterator[tuple[str, str]]:
    word, _, rest = line.partition(" ")
    if word in {"ENV", "LABEL"}:
        for part in shlex.split(rest):
            name, _, value = part.partition("=")
            yield f"{word.lower()} {name}", value
    elif word in {"ENTRYPOINT", "CMD"}:
        yield word.lower(), json.dumps(json.loads(rest))
    elif word in {"WORKDIR", "USER", "STOPSIGNAL"}:
        yield {"WORKDIR": "workingdir"}.get(word, word.lower()), rest.strip()


def imaged(image: str, arch: Arch, *, base: str = "bootstrap", path: Path = digests.DIGESTS) -> Side | None:
    """Return what the image that was built here holds, or None where none was.

    base: what it stands on; the Debian packages of one that is not ours are left out, as no lock of ours decides them.
    path: the record of what was built.
    """
    entry = digests.load(path).images.get(image, {}).get(arch)
    if entry is None:
        return None
    source = open_image(digests.layout_of(entry, path), arch.docker)
    tree = merge(scan_image(source))
    covers = {"package", "script", "patch", "setting"} | ({"deb"} if base == "bootstrap" else set())
    side = Side(arch, "image", covers=frozenset(covers))
    for venv in find_venvs(tree):
        _of_venv(side, tree, venv)
    for name, value in settings_of(source.config).items():
        side.add("setting", "", name, value)
    if base == "bootstrap":
        for name, version in deb_versions(tree).items():
            side.add("deb", "", deb_name(name, arch), version)
    rows = json.loads(tree.text(PATCHES) or '{"patches": []}')["patches"]
    for row in rows:
        name = f"{row['package']} {row['id']} {row['file']}"
        side.add("patch", row["venv"], name, f"{row['status']} {row['sha256_after'][:12]}".strip(), row["package"])
    return side


def _of_venv(side: Side, tree: Tree, venv: Venv) -> None:
    folder = f"{venv.root}/bin/"
    for dist in venv.dists:
        side.add("package", venv.name, dist.name, dist.version)
        for path in dist.files:
            if path.startswith(folder) and re.fullmatch(r"[^/]+", path[len(folder) :]) and path in tree.entries:
                side.add("script", venv.name, path[len(folder) :], script_target(tree.text(path) or ""), dist.name)
