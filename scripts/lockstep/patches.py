"""Which patches an image would carry: every concern judged on a locked version, or on any published one.

The files are read out of the wheel where it lies, by range requests, so a forecast for a 300 MB wheel fetches about
3 MB. What a patch is and when it fits is decided by docker/build/patch_model.py, which the build stage uses as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from lockstep import paths
from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.index import find_wheel, open_wheel
from lockstep.lock import read_lock

# The two modules that the build stage runs; they are no package, because the stage holds nothing but them.
_SHARED = str(Path(__file__).resolve().parents[2] / "docker" / "build")
if _SHARED not in sys.path:
    sys.path.append(_SHARED)

from apply_patches import Removal, load_patches, load_removals  # noqa: E402 - needs the path above
from patch_model import Patch, PatchError, State, Verdict, choose, overlap, version_key  # noqa: E402 - likewise

FOLDER = paths.DOCKER / "patches"


@dataclass(frozen=True)
class Row:
    """One line of the table: a patch, or a removal, and how it stands on one version of its package."""

    package: str
    version: str
    id: str
    file: str
    versions: str
    state: str
    forwarded: str
    why: str
    stops: bool
    """Whether a build of this version would stop at it."""


@dataclass(frozen=True)
class Use:
    """A version of a patched package that locks hold, and the backends that hold it."""

    package: str
    version: str
    backends: tuple[str, ...]
    names: frozenset[str]
    """The packages that every one of these locks holds."""


def packages() -> list[str]:
    """Return the packages that have patches or removals."""
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def locked(package: str, root: Path = paths.ROOT) -> list[Use]:
    """Return the versions of a package in images/*/lock.*.txt, lowest first; none where no lock holds it."""
    backends: dict[str, set[str]] = {}
    names: dict[str, frozenset[str]] = {}
    for path in sorted((root / "images").glob("*/lock.*.txt")):
        lock = read_lock(path.parent.name, Arch(path.name.split(".")[1]), root).by_name()
        wheel = lock.get(canonicalize_name(package))
        if wheel is not None:
            backends.setdefault(wheel.version, set()).add(path.parent.name)
            names[wheel.version] = names.get(wheel.version, frozenset(lock)) & frozenset(lock)
    return [
        Use(package, version, tuple(sorted(backends[version])), names[version])
        for version in sorted(backends, key=version_key)
    ]


def declared(package: str, version: str) -> list[tuple[str, str]]:
    """Return the (id, path) of every patch and removal that is declared for a version of a package; reads no wheel."""
    folder = FOLDER / package
    if not folder.is_dir():
        return []
    found = [(patch.id, path) for patch in load_patches(folder) if version in patch.versions for path in patch.paths]
    return found + [(item.id, item.path) for item in load_removals(folder) if version in item.versions]


@dataclass(frozen=True)
class Forecast:
    """The rows of one package and version, and the bytes that were fetched to judge them."""

    rows: tuple[Row, ...]
    fetched: int


class WheelFiles:
    """The text files of a published wheel, each read once and only when asked for."""

    def __init__(self, package: str, version: str, arch: Arch, python: str) -> None:
        self._wheel = find_wheel(package, version, arch, python)
        self._texts: dict[str, str | None] = {}

    @contextmanager
    def open(self) -> Iterator[WheelFiles]:
        """Hold the wheel open. LockstepError where the index or the wheel cannot be read."""
        with open_wheel(self._wheel) as self._archive:
            self._names = frozenset(self._archive.namelist())
            yield self

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None where the wheel has no such file."""
        if path not in self._texts:
            self._texts[path] = self._archive.read(path).decode() if path in self._names else None
        return self._texts[path]

    def count(self, folder: str) -> int:
        """Return how many files lie at or below a path."""
        return sum(name == folder or name.startswith(f"{folder}/") for name in self._names)

    @property
    def fetched(self) -> int:
        """The bytes that were fetched so far."""
        return int(getattr(self._archive.fp, "fetched", 0))


def _state(verdict: Verdict) -> str:
    patch = verdict.patch
    if verdict.state in {State.APPLIES, State.APPLIED} and patch.inert:
        return "applies, inert"
    return {State.FIXED: "fixed upstream", State.NOT_NEEDED: "not needed"}.get(verdict.state, verdict.state.value)


def _why(verdict: Verdict) -> str:
    patch = verdict.patch
    if verdict.state in {State.APPLIES, State.APPLIED}:
        return f"matters only under {patch.inert}" if patch.inert else patch.summary
    return verdict.why


def _patch_row(package: str, version: str, verdict: Verdict) -> Row:
    patch = verdict.patch
    stops = verdict.state in {State.BROKEN, State.UNDECLARED}
    text = (patch.filename, patch.versions.text, _state(verdict), patch.forwarded)
    return Row(package, version, patch.id, *text, _why(verdict), stops)


def _removal_row(package: str, version: str, removal: Removal, count: int, names: frozenset[str] | None) -> Row:
    inside = version in removal.versions
    missing = [name for name in removal.needs if names is not None and canonicalize_name(name) not in names]
    if not count:
        state, why = "not there", f"{removal.path} is not in the wheel"
    elif not inside:
        state, why = "undeclared", f"declared for {removal.versions.text} only, and still there"
    elif missing:
        state, why = "broken", f"{removal.path} is needed while the lock lacks {', '.join(missing)}"
    else:
        state, why = f"removes {count}", removal.why
    stops = state in {"undeclared", "broken"}
    return Row(package, version, removal.id, "removals.toml", removal.versions.text, state, "not-needed", why, stops)


def judge_files(package: str, version: str, files: WheelFiles, names: frozenset[str] | None = None) -> list[Row]:
    """Return the rows of a package on the files of one version. names: what the lock holds, where one is meant.

    LockstepError where a patch file itself is malformed, or two patches touch the same lines.
    """
    folder = FOLDER / package
    try:
        patches, removals = load_patches(folder), load_removals(folder)
        verdicts = choose(patches, version, files.read)
        clash = overlap(_active(verdicts), files.read)
    except (PatchError, OSError) as error:
        raise LockstepError(str(error), where=str(folder), fix="mend the patch") from None
    if clash:
        raise LockstepError(clash, where=str(folder), fix="make them one patch")
    rows = [_patch_row(package, version, verdict) for verdict in verdicts]
    return rows + [_removal_row(package, version, item, files.count(item.path), names) for item in removals]


def _active(verdicts: list[Verdict]) -> list[Patch]:
    return [verdict.patch for verdict in verdicts if verdict.state in {State.APPLIES, State.APPLIED}]


def forecast(package: str, version: str, arch: Arch, python: str, names: frozenset[str] | None = None) -> Forecast:
    """Judge every patch of a package on a published version. LockstepError where the version is not published."""
    if package not in packages():
        raise LockstepError(
            f"there are no patches for {package}", where=str(FOLDER), fix=f"name one of {', '.join(packages())}"
        )
    with WheelFiles(package, version, arch, python).open() as files:
        rows = judge_files(package, version, files, names)
        return Forecast(tuple(rows), files.fetched)
