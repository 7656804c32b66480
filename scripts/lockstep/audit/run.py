"""Audit a venv, a root file system or an image: gather its files once, run the checks, apply the matrix's rules."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.arch import Arch
from lockstep.audit.abi import Line, check_abi, lines_of
from lockstep.audit.base import Base, base_of_tree, trixie
from lockstep.audit.duplicates import check_duplicates
from lockstep.audit.elf import EM_CUDA
from lockstep.audit.finding import CHECKS, Finding, failures
from lockstep.audit.integrity import check_integrity, check_vendored
from lockstep.audit.layers import lint_layers, merge, scan_image
from lockstep.audit.metadata import Installed, Reasoned, check_metadata
from lockstep.audit.oci import is_image, open_image
from lockstep.audit.overlap import check_overlap
from lockstep.audit.residue import check_caches, check_residue
from lockstep.audit.tree import Tree, scan_folder
from lockstep.audit.venv import Venv, find_venvs
from lockstep.audit.waivers import AuditRules, apply_rules
from lockstep.errors import LockstepError


@dataclass(frozen=True)
class Wanted:
    """What the matrix says about one backend's venv, for the metadata check."""

    requires: tuple[str, ...] = ()
    overrides: tuple[Reasoned, ...] = ()
    excluded: tuple[Reasoned, ...] = ()
    left_out: tuple[str, ...] = ()
    """Compiled packages that the image leaves out (WITHOUT=); they are among `excluded` too."""


@dataclass(frozen=True)
class Options:
    """How to audit. base: a root file system to take the base from; other_torch: folders of other torch lines;
    name: the backend that a lone venv is; checks: those to run; hashed: compare content with RECORD, not just sizes."""

    arch: Arch | None = None
    base: Path | None = None
    other_torch: tuple[Path, ...] = ()
    name: str = ""
    checks: tuple[str, ...] = CHECKS
    hashed: bool = True
    cache: bool = True
    workers: int = 2
    today: datetime.date | None = None
    python: str = "3.13"
    download: bool = False


@dataclass(frozen=True)
class Audit:
    """The result. seconds is wall time; files counts names, libraries ELF files."""

    subject: str
    arch: Arch
    venvs: tuple[str, ...]
    distributions: int
    libraries: int
    files: int
    hashed: bool
    seconds: float
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not failures(self.findings)


@dataclass
class Subject:
    """What was gathered: the merged tree, its layers where it is an image, its venvs and architecture."""

    tree: Tree
    layers: list[Tree]
    venvs: list[Venv]
    arch: Arch
    own_from: int = 0


def audit(
    path: Path, options: Options, rules: AuditRules | None = None, wanted: Mapping[str, Wanted] | None = None
) -> Audit:
    """Audit a path and return what was found. LockstepError where it is nothing that can be audited."""
    started = time.monotonic()
    subject = gather(path, options)
    findings = check(subject, options, wanted or {})
    findings = apply_rules(
        findings,
        rules or AuditRules(),
        arch=subject.arch,
        today=options.today or datetime.date.today(),
        backends=[venv.name for venv in subject.venvs],
        checks=options.checks,
        lacking=[name for name, item in (wanted or {}).items() if item.left_out],
    )
    return Audit(
        subject=str(path),
        arch=subject.arch,
        venvs=tuple(venv.name for venv in subject.venvs),
        distributions=sum(len(venv.dists) for venv in subject.venvs),
        libraries=len(subject.tree.elves) + len(subject.tree.broken),
        files=len(subject.tree.entries),
        hashed=options.hashed,
        seconds=time.monotonic() - started,
        findings=tuple(findings),
    )


def gather(path: Path, options: Options) -> Subject:
    """Read a path's files and find its venvs."""
    if not path.exists():
        raise LockstepError("does not exist", where=str(path), fix="build the image first, or name a venv")
    if is_image(path):
        source = open_image(path, options.arch.docker if options.arch else "")
        layers = scan_image(source, workers=options.workers, cache=options.cache)
        tree = merge(layers)
        own_from = first_own(layers)
        venvs = find_venvs(tree)
        arch = {arch.docker: arch for arch in Arch}.get(source.architecture)
    elif path.is_file():
        raise LockstepError("is neither an image nor a folder", where=str(path), fix="name a venv, a root or an image")
    else:
        layers, own_from, arch = [], 0, None
        whole = not (path / "opt/venvs").is_dir()
        tree = scan_folder(
            path,
            hashed=lambda name: options.hashed and (whole or name.startswith("opt/venvs/")),
            workers=options.workers,
        )
        venvs = find_venvs(tree)
        venvs = [replace(venv, name=options.name or path.resolve().name) if not venv.root else venv for venv in venvs]
    if not venvs:
        raise LockstepError("holds no venv", where=str(path), fix="name a venv, a root with /opt/venvs, or an image")
    arch = options.arch or arch or majority(tree, venvs)
    return Subject(tree, layers, venvs, arch, own_from)


def first_own(layers: Sequence[Tree]) -> int:
    """Return the number of the first layer with something of ours in it; those below are a foreign base."""
    for number, layer in enumerate(layers):
        if any(path.startswith(("opt/venvs/", "opt/lockstep/")) for path in layer.entries):
            return number
    return 0


def _never(_: str) -> bool:
    return False


def majority(tree: Tree, venvs: Sequence[Venv]) -> Arch:
    """Return the architecture that most libraries of the venvs are for; x86_64 where there are none."""
    counts = Counter(elf.machine for elf in tree.elves.values() if elf.machine != EM_CUDA)
    return max(Arch, key=lambda arch: counts[arch.elf_machine])


def check(subject: Subject, options: Options, wanted: Mapping[str, Wanted]) -> list[Finding]:
    """Run the checks over what was gathered; paths inside a venv come back relative to its site-packages or root."""
    findings: list[Finding] = []
    for venv in subject.venvs:
        found = _check_venv(subject, venv, options, wanted.get(venv.name, Wanted()))
        findings += [replace(item, path=inside(item.path, venv)) for item in found]
    if "residue" in options.checks and subject.layers:
        findings += check_caches(subject.tree)
    if "layers" in options.checks and subject.layers:
        findings += lint_layers(subject.layers, own_from=subject.own_from)
    return findings


def inside(path: str, venv: Venv) -> str:
    """Return a path relative to site-packages, or to the venv where it lies beside it."""
    for top in (venv.site, venv.root):
        if top and path.startswith(f"{top}/"):
            return path[len(top) + 1 :]
    return path


def _check_venv(subject: Subject, venv: Venv, options: Options, wanted: Wanted) -> list[Finding]:
    tree, findings = subject.tree, []
    if "abi" in options.checks:
        findings += _abi(subject, venv, options)
    if "overlap" in options.checks:
        findings += check_overlap(
            [(dist.label, {path: row.sha256 for path, row in dist.files.items()}) for dist in venv.dists], venv.name
        )
    if "integrity" in options.checks:
        findings += check_integrity(tree, venv, hashed=options.hashed)
    if "vendored" in options.checks:
        findings += check_vendored(tree, venv)
    if "metadata" in options.checks:
        installed = [Installed(dist.name, dist.version, dist.requires, dist.folder) for dist in venv.dists]
        findings += check_metadata(
            installed, subject.arch, venv.python, venv=venv.name, roots=wanted.requires,
            overrides=wanted.overrides, excluded=wanted.excluded,
        )  # fmt: skip
    if "duplicates" in options.checks:
        findings += check_duplicates(venv, {path: tree.elves[path] for path in _elves_of(tree, venv)})
    if "residue" in options.checks:
        prefix = "/" if venv.root or tree.disk is None else str(tree.disk.resolve())
        findings += check_residue(tree, venv, prefix=prefix)
    return findings


def _abi(subject: Subject, venv: Venv, options: Options) -> list[Finding]:
    tree = subject.tree
    objects = {path: tree.elves[path] for path in _elves_of(tree, venv)}
    prefix = f"{venv.root}/" if venv.root else ""
    broken = {path: fault for path, fault in tree.broken.items() if path.startswith(prefix)}
    owners = venv.owners()

    def owner(path: str) -> str:
        dist = owners.get(path)
        return dist.label if dist else ""

    return check_abi(
        objects, broken, _base(subject, options), subject.arch, venv=venv.name, owner=owner,
        torch=venv.version_of("torch"), python=venv.python, others=_other_lines(subject, venv, options),
    )  # fmt: skip


def _elves_of(tree: Tree, venv: Venv) -> Iterable[str]:
    prefix = f"{venv.root}/" if venv.root else ""
    return (path for path in tree.elves if path.startswith(prefix))


def _base(subject: Subject, options: Options) -> Base:
    if options.base is not None:
        return base_of_tree(scan_folder(options.base, hashed=_never, workers=options.workers), ["opt/venvs"])
    base = base_of_tree(subject.tree, [venv.root for venv in subject.venvs]) if subject.venvs[0].root else Base()
    if any(name.startswith("libc.so") for name in base.sonames):
        return base
    return trixie(subject.arch)


def _other_lines(subject: Subject, venv: Venv, options: Options) -> list[Line]:
    lines = []
    for other in subject.venvs:
        version = other.version_of("torch")
        if other is not venv and version and version != venv.version_of("torch"):
            objects = {path: subject.tree.elves[path] for path in _elves_of(subject.tree, other)}
            lines.append(lines_of(objects, f"torch {version} (venv {other.name})"))
    for folder in options.other_torch:
        tree = scan_folder(folder, hashed=_never, workers=1)
        found = [item.version_of("torch") for item in find_venvs(tree)]
        version = next((item for item in found if item), str(folder))
        lines.append(lines_of(tree.elves, f"torch {version}"))
    return lines
