"""Step 2: what exactly to install. uv resolves each backend on each architecture; the result is written as locks.

Resolution uses wheels alone: a source distribution could build anything (CASES A15), and what must be compiled is
declared under `compile` (or `mirror`), which stand-ins put before the resolver. Versions already locked are
preferences, so that a relock moves only what was asked.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.index import best_wheel, files_of, find_wheel, index_url, redact
from lockstep.lock import Lock, LockedWheel, inputs_of, outside_of
from lockstep.matrix import Backend, Matrix
from lockstep.stubs import write_stub
from lockstep.tools import uv_program

_INDEX_DOWN = re.compile(
    r"error sending request|failed to fetch|connection refused|dns error|timed out|request failed|50[0-9] ", re.I
)


@dataclass(frozen=True)
class Upgrade:
    """What a relock may move: nothing but what versions.yaml asks, some packages, or everything."""

    everything: bool = False
    packages: frozenset[str] = frozenset()


def parse_upgrade(text: str) -> Upgrade:
    """Read `UPGRADE=`: empty, `all`, or package names separated by commas or spaces."""
    names = [name for name in re.split(r"[\s,]+", text) if name]
    if names == ["all"]:
        return Upgrade(everything=True)
    return Upgrade(packages=frozenset(canonicalize_name(name) for name in names))


def resolve(
    matrix: Matrix, name: str, arch: Arch, *, previous: Lock | None, others: Sequence[Lock], upgrade: Upgrade
) -> Lock:
    """Resolve one backend on one architecture.

    previous is its lock so far; others are locks whose versions are soft preferences, nearest first (the same backend
    on the other architecture, then the backends that share an image). LockstepError where there is no solution, a
    package has no wheel, a hold would be crossed, or the index does not answer.
    """
    backend = matrix.backends[name]
    where = f"backend {name} on {arch}"
    outside = outside_of(matrix, name, arch)
    preferences = _preferences(previous, others, upgrade)
    for wheel, _ in outside:
        preferences.pop(wheel.name, None)
    with tempfile.TemporaryDirectory(prefix="lockstep-resolve-") as text:
        folder = Path(text)
        stubs = [write_stub(wheel, requires, folder) for wheel, requires in outside]
        pinned = _compile(matrix, name, arch, folder, stubs, preferences, where)
        wheels = [*_wheels(pinned, arch, matrix.python, where), *(wheel for wheel, _ in outside)]
    _check_line(matrix, backend, wheels, where)
    _check_holds(backend, wheels, where)
    return Lock(name, arch, inputs_of(matrix, name, arch), tuple(sorted(wheels)))


def _preferences(previous: Lock | None, others: Sequence[Lock], upgrade: Upgrade) -> dict[str, str]:
    """Return the versions to prefer, by package. The own lock wins over the others', unless it is to be upgraded."""
    chosen: dict[str, str] = {}
    if previous is not None and not upgrade.everything:
        chosen = {wheel.name: wheel.version for wheel in previous.wheels if wheel.name not in upgrade.packages}
    for other in others:
        for wheel in other.wheels:
            if wheel.name not in upgrade.packages or upgrade.everything:
                chosen.setdefault(wheel.name, wheel.version)
    return chosen


def _compile(
    matrix: Matrix, name: str, arch: Arch, folder: Path, stubs: list[str], preferences: dict[str, str], where: str
) -> list[dict[str, Any]]:
    """Run uv's resolver; return the packages of the pylock.toml that it writes (PEP 751), but not the stand-ins."""
    backend = matrix.backends[name]
    pins = matrix.lines[backend.line]
    holds = [f"{item.package}=={item.version}" for item in backend.holds if item.version]
    texts = {
        "requires.in": [*backend.requires, *stubs],
        "constraints.txt": [
            *(f"{package}=={version}" for package, version in pins.items()),
            *(item.requirement for item in backend.constraints),
            *holds,
        ],
        "overrides.txt": [item.requirement for item in backend.overrides],
        "excludes.txt": sorted(matrix.left_out(name, arch)),
        "pinned.txt": [f"{package}=={version}" for package, version in sorted(preferences.items())],
    }
    for file, lines in texts.items():
        (folder / file).write_text("".join(f"{line}\n" for line in lines))
    # uv wants an interpreter to build with, which never happens; any will do, and looking for one costs seconds.
    common = [
        "--python",
        sys.executable,
        "--python-version",
        matrix.python,
        "--python-platform",
        arch.manylinux,
        "--only-binary",
        ":all:",
    ]
    common += ["--no-header", "--no-annotate", "--quiet"]
    inputs = ["--constraints", "constraints.txt", "--overrides", "overrides.txt", "--excludes", "excludes.txt"]
    _uv([*common, *inputs, "requires.in", "-o", "pinned.txt"], folder, backend, where)
    found = (folder / "pinned.txt").read_text().splitlines()
    (folder / "pinned.txt").write_text("".join(f"{line}\n" for line in found if " @ " not in line))
    # A second, trivial run turns the pins into file names, sizes and hashes. It needs no network, since the first run
    # has just put every page into uv's cache, and asking again for 200 pages costs some 12 s.
    listing = ["--no-deps", "--format", "pylock.toml", "pinned.txt", "-o", "pylock.toml"]
    _uv([*common, "--offline", *listing], folder, backend, where)
    packages: list[dict[str, Any]] = tomllib.loads((folder / "pylock.toml").read_text()).get("packages", [])
    return packages


def _uv(arguments: list[str], folder: Path, backend: Backend, where: str) -> None:
    env = dict(os.environ, UV_DEFAULT_INDEX=index_url(), UV_NO_CONFIG=os.environ.get("UV_NO_CONFIG", "0"))
    env["UV_PYTHON_DOWNLOADS"] = "never"
    env.pop("UV_INDEX_URL", None)
    words = [str(uv_program()), "pip", "compile", *arguments]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    said = _plain(done.stderr)
    if _INDEX_DOWN.search(said) and "No solution" not in said:
        raise LockstepError(
            f"the index does not answer: {said.splitlines()[-1] if said else 'no message'}",
            where=f"{where}, index {redact(index_url())}",
            fix="check the network, and UV_DEFAULT_INDEX or PIP_INDEX_URL; the locks were left as they are",
        )
    fix = "change a requirement, or declare an override with its why"
    if "building from source is disabled" in said:
        fix = "exclude what has no wheel, with its why, or declare it under compile or mirror"
    raise LockstepError(
        f"no set of wheels satisfies versions.yaml: {said}{_decided(said, backend)}",
        where=where,
        fix=f"{fix}; the locks were left as they are",
    )


def _plain(text: str) -> str:
    """Fold uv's drawn error into one line, without addresses' credentials."""
    text = re.sub(r"[\u2500-\u257f×│╰▶─]+", " ", text)
    text = re.sub(r"//[^/@\s]+@", "//", text)
    return re.sub(r"\s+", " ", text).removeprefix(" ").removeprefix("error: ").strip()


def _decided(said: str, backend: Backend) -> str:
    """Name the overrides and holds of the packages that a resolver's message speaks of."""
    notes = [
        f"override {item.requirement} ({item.why})" for item in backend.overrides if _names(said, item.requirement)
    ]
    notes += [f"hold {item.package} ({item.why})" for item in backend.holds if item.package in said]
    return f" [declared: {'; '.join(notes)}]" if notes else ""


def _names(said: str, requirement: str) -> bool:
    return canonicalize_name(Requirement(requirement).name) in said


def _wheels(packages: Iterable[dict[str, Any]], arch: Arch, python: str, where: str) -> list[LockedWheel]:
    """Choose the one wheel per package that the platform installs."""
    chosen = []
    for package in packages:
        name, version = canonicalize_name(package["name"]), str(package["version"])
        files = {_filename(item): item for item in package.get("wheels", [])}
        best = best_wheel(list(files), arch, python)
        if best is None:
            find_wheel(name, version, arch, python)
            raise LockstepError(f"{name} {version} has no usable wheel", where=where, fix="choose another version")
        item = files[best]
        size = int(item.get("size") or 0) or _size_on_index(name, version, best)
        locked_version = str(parse_wheel_filename(best)[1])
        chosen.append(LockedWheel(name, locked_version, best, item["hashes"]["sha256"], size))
    return chosen


def _filename(item: dict[str, Any]) -> str:
    return str(item.get("name") or str(item["url"]).split("#", 1)[0].rsplit("/", 1)[-1].replace("%2B", "+"))


def _size_on_index(name: str, version: str, filename: str) -> int:
    sizes = [item.size for item in files_of(name, version) if item.filename == filename]
    return sizes[0] if sizes else 0


def _check_line(matrix: Matrix, backend: Backend, wheels: list[LockedWheel], where: str) -> None:
    """Refuse a wheel whose local version differs from the line's pin: `2.13.0+cpu` satisfies `==2.13.0` (CASES A14)."""
    for wheel in wheels:
        pin = matrix.lines[backend.line].get(wheel.name)
        if pin is not None and Version(pin) != Version(wheel.version):
            raise LockstepError(
                f"the index serves {wheel.name} {wheel.version} where line {backend.line} pins {pin}",
                where=where,
                fix="set the index that holds the wanted build, or write the whole version in versions.yaml",
            )


def _check_holds(backend: Backend, wheels: list[LockedWheel], where: str) -> None:
    found = {wheel.name: wheel.version for wheel in wheels}
    for hold in backend.holds:
        version = found.get(hold.package)
        if version and hold.not_past and Version(version) > Version(hold.not_past):
            raise LockstepError(
                f"{hold.package} would move to {version}, past {hold.not_past} ({hold.why})",
                where=where,
                fix="add a version to the hold, or move its not_past; the locks were left as they are",
            )
