#!/usr/bin/env python3
"""Patch the packages of a virtual environment, and take out of it what an image must not carry.

Runs in a build stage, after the wheels are installed and before bytecode is compiled. Standard library only, plus
`patch` or `git` for the change itself. Nothing is written unless every patch of the environment fits.

    apply_patches.py --venv /opt/venvs/vllm --patches /lockstep/patches --report /opt/lockstep/patches.json
    apply_patches.py --merge one.json two.json --report /opt/lockstep/patches.json

Exit code 0: done, or there was nothing to do. 1: one sentence on stderr says which patch does not fit and what to do.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from patch_model import Patch, PatchError, Range, State, Verdict, apply_text, choose, overlap, parse


@dataclass(frozen=True)
class Entry:
    """What was done about one file: a row of patches.json. Hashes are SHA-256 in hex, "" where there is no file."""

    venv: str
    package: str
    version: str
    id: str
    status: str
    why: str
    file: str
    sha256_before: str
    sha256_after: str
    patch: str
    summary: str
    forwarded: str
    origin: str


@dataclass(frozen=True)
class Removal:
    """A path that is taken out of a package, as declared in a removals.toml beside the package's patches."""

    id: str
    versions: Range
    path: str
    why: str
    needs: tuple[str, ...] = ()
    """Packages that the venv must hold, because the removed files would be used in their place."""


@dataclass(frozen=True)
class Distribution:
    """An installed distribution: its site-packages, name, version and the path of its RECORD."""

    site: Path
    name: str
    version: str
    record: Path


def _canonical(name: str) -> str:
    # PEP 503: runs of -, _ and . are one and the same.
    return re.sub(r"[-_.]+", "-", name).lower()


def site_packages(venv: Path) -> Path:
    """Return the site-packages of a virtual environment."""
    found = sorted(venv.glob("lib/python3.*/site-packages"))
    if len(found) != 1:
        raise PatchError(f"{venv} is not a virtual environment: it has {len(found)} site-packages")
    return found[0]


def distributions(site: Path) -> dict[str, Distribution]:
    """Return the installed distributions by canonical name; name and version come from each METADATA."""
    found = {}
    for metadata in sorted(site.glob("*.dist-info/METADATA")):
        head = metadata.read_text("utf-8", "replace").split("\n\n", 1)[0]
        fields = dict(re.findall(r"^(Name|Version): *(\S+)", head, re.MULTILINE))
        if len(fields) == 2:
            dist = Distribution(site, fields["Name"], fields["Version"], metadata.with_name("RECORD"))
            found[_canonical(dist.name)] = dist
    return found


def load_patches(folder: Path) -> list[Patch]:
    """Read every *.patch of a package's folder, in order of name. PatchError names the first that is malformed."""
    return [parse(path.read_bytes().decode(), path.name) for path in sorted(folder.glob("*.patch"))]


def load_removals(folder: Path) -> list[Removal]:
    """Read the folder's removals.toml where there is one: a list of tables `remove` of id, versions, path and why."""
    path = folder / "removals.toml"
    if not path.is_file():
        return []
    removals = []
    for table in tomllib.loads(path.read_text()).get("remove", []):
        try:
            needs = tuple(table.get("needs", ()))
            removal = Removal(table["id"], Range.parse(table["versions"]), table["path"], table["why"], needs)
        except KeyError as error:
            raise PatchError(f"{path.name}: a removal lacks {error}") from None
        if Path(removal.path).is_absolute() or ".." in Path(removal.path).parts:
            raise PatchError(f"{path.name}: {removal.path} does not lie inside the package")
        removals.append(removal)
    return removals


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _replace(path: Path, data: bytes) -> None:
    """Write a new file and rename it over `path`, so that other hard links of the old one keep their content."""
    mode = path.stat().st_mode & 0o7777
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(name).chmod(mode)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


class Record:
    """The RECORD of a distribution: a CSV of path, hash and size (PEP 376; the wheel format's urlsafe base64)."""

    def __init__(self, dist: Distribution) -> None:
        if not dist.record.is_file():
            raise PatchError(f"{dist.name} {dist.version} has no RECORD, so its files cannot be accounted for")
        self._path = dist.record
        self._old = dist.record.read_bytes()
        self._rows = {row[0]: row for row in csv.reader(io.StringIO(self._old.decode())) if row}

    def sha256(self, path: str) -> str:
        """Return the recorded SHA-256 of a file in hex, or "" where the file is not listed or has no hash."""
        value = self._rows.get(path, ["", ""])[1]
        if not value.startswith("sha256="):
            return ""
        text = value.removeprefix("sha256=")
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()

    def set(self, path: str, data: bytes) -> None:
        """Record new content of a file."""
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self._rows[path] = [path, f"sha256={digest}", str(len(data))]

    def drop(self, path: str) -> int:
        """Forget a path and all below it; return how many rows that were."""
        gone = [name for name in self._rows if name == path or name.startswith(f"{path}/")]
        for name in gone:
            del self._rows[name]
        return len(gone)

    def save(self) -> bool:
        """Write the file if a row changed; return whether it was written."""
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\r\n" if b"\r\n" in self._old else "\n").writerows(self._rows.values())
        data = stream.getvalue().encode()
        if (
            data == self._old
            or {row[0]: row for row in csv.reader(io.StringIO(self._old.decode())) if row} == self._rows
        ):
            return False
        _replace(self._path, data)
        return True


def run_tool(patch: Patch, path: str, text: str) -> str:
    """Apply the patch's diff of one file with GNU patch, or git where that is missing; no fuzz; return the new text."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / path
        target.parent.mkdir(parents=True)
        target.write_bytes(text.encode())
        if program := shutil.which("patch"):
            argv = [program, "-p1", "--fuzz=0", "--batch", "--forward", "--no-backup-if-mismatch", "--reject-file=-"]
        elif program := shutil.which("git"):
            # git apply knows no fuzz at all: each line of context must match.
            argv = [program, "apply", "--whitespace=nowarn", "-p1", "-"]
        else:
            raise PatchError("neither patch nor git is installed in this build stage; add one of them")
        # GIT_CEILING_DIRECTORIES: a repository around the temporary folder would make git look for the path in it.
        env = {**os.environ, "LC_ALL": "C", "GIT_CEILING_DIRECTORIES": str(Path(folder).parent)}
        done = subprocess.run(
            argv, cwd=folder, env=env, input=patch.diff[path].encode(), capture_output=True, check=False
        )
        if done.returncode:
            said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
            raise PatchError(
                f"{patch.filename}: {Path(program).name} refuses it: {said[-1] if said else 'no reason given'}"
            )
        return target.read_bytes().decode()


class Job:
    """The patching of one distribution. `plan` reads and checks everything; `write` then changes the files."""

    def __init__(self, venv: Path, dist: Distribution, folder: Path) -> None:
        self._venv, self._dist = venv, dist
        self._patches, self._removals = load_patches(folder), load_removals(folder)
        self._record = Record(dist)
        self._texts: dict[str, str | None] = {}
        self._entries: list[Entry] = []
        self._written: dict[str, bytes] = {}
        self._removed: list[str] = []

    def _read(self, path: str) -> str | None:
        if path not in self._texts:
            file = self._dist.site / path
            self._texts[path] = file.read_bytes().decode() if file.is_file() else None
        return self._texts[path]

    def _stop(self, verdict: Verdict) -> PatchError:
        name = f"{self._dist.name} {self._dist.version}: {verdict.patch.filename}"
        if verdict.state is State.UNDECLARED:
            return PatchError(f"{name} is {verdict.why}; widen its Lockstep-Versions, or drop it, after a test")
        return PatchError(
            f"{name} does not fit: {verdict.why}; rewrite it for this version, or declare Lockstep-Fixed-By"
        )

    def plan(self) -> None:
        """Judge every patch and compute every new file. PatchError where the build must stop; nothing is written."""
        verdicts = choose(self._patches, self._dist.version, self._read)
        for verdict in verdicts:
            if verdict.state in {State.BROKEN, State.UNDECLARED}:
                raise self._stop(verdict)
        active = [verdict for verdict in verdicts if verdict.state in {State.APPLIES, State.APPLIED}]
        clash = overlap([verdict.patch for verdict in active], self._read)
        if clash:
            raise PatchError(f"{self._dist.name} {self._dist.version}: {clash}; make them one patch")
        befores, afters = {}, {}
        for path in dict.fromkeys(path for verdict in active for path in verdict.patch.paths):
            pristine = current = self._read(path) or ""
            for verdict in active:
                if path not in verdict.patch.paths:
                    continue
                if verdict.state is State.APPLIED:
                    pristine = apply_text(verdict.patch, path, pristine, reverse=True)
                    continue
                expected = apply_text(verdict.patch, path, current)
                current = run_tool(verdict.patch, path, current)
                if current != expected:
                    raise PatchError(f"{verdict.patch.filename}: the patched {path} is not what the patch says")
            befores[path], afters[path] = _sha256(pristine.encode()), _sha256(current.encode())
            self._check_record(path, befores[path], afters[path])
            self._written[path] = current.encode()
        for verdict in verdicts:
            self._note(verdict, befores, afters)
        for removal in self._removals:
            self._plan_removal(removal)

    def _check_record(self, path: str, before: str, after: str) -> None:
        # The hash is of the file as it is; or of before or after, where a run was cut short before it wrote RECORD.
        if self._record.sha256(path) not in {_sha256((self._read(path) or "").encode()), before, after}:
            raise PatchError(
                f"{self._dist.name} {self._dist.version}: {path} is not the file that RECORD lists; "
                "install the wheel again before patching"
            )

    def _note(self, verdict: Verdict, befores: dict[str, str], afters: dict[str, str]) -> None:
        patch, active = verdict.patch, verdict.state in {State.APPLIES, State.APPLIED}
        why = verdict.why
        if active:
            status = "inert" if patch.inert else "applied"
            # The second run must give the same report as the first, so the state of this run is not told.
            why = f"matters only under {patch.inert}" if patch.inert else "every anchor occurred exactly once"
        else:
            status = "fixed-upstream" if verdict.state is State.FIXED else "skipped"
        for path in patch.paths:
            data = (self._read(path) or "").encode()
            same = _sha256(data) if self._read(path) is not None else ""
            self._entries.append(
                Entry(
                    str(self._venv),
                    self._dist.name,
                    self._dist.version,
                    patch.id,
                    status,
                    why,
                    path,
                    befores[path] if active else same,
                    afters[path] if active else same,
                    patch.filename,
                    patch.summary,
                    patch.forwarded,
                    patch.fields.get("Bug") or patch.fields["Origin"],
                )
            )

    def _plan_removal(self, removal: Removal) -> None:
        there = (self._dist.site / removal.path).exists()
        status, why = "removed", removal.why
        if self._dist.version not in removal.versions:
            if there:
                raise PatchError(
                    f"{self._dist.name} {self._dist.version} is outside {removal.versions.text}, for which "
                    f"{removal.path} is removed; look whether it is still unwanted, and widen the versions"
                )
            status, why = "skipped", f"declared for {removal.versions.text} only, and not in this version"
        else:
            self._removed.append(removal.path)
        self._entries.append(
            Entry(
                str(self._venv),
                self._dist.name,
                self._dist.version,
                removal.id,
                status,
                why,
                removal.path,
                "",
                "",
                "removals.toml",
                removal.why,
                "not-needed",
                "removal",
            )
        )

    def write(self, *, compile_bytecode: bool) -> int:
        """Write the patched files, drop the removed ones, mend RECORD, replace bytecode; return the files changed."""
        changed = 0
        for path, data in self._written.items():
            file = self._dist.site / path
            if file.read_bytes() != data:
                _replace(file, data)
                if file.read_bytes() != data:
                    raise PatchError(f"{file} does not hold what was written to it")
                changed += 1
                self._bytecode(file, compile_bytecode)
            self._record.set(path, data)
        for path in self._removed:
            target = self._dist.site / path
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
                changed += 1
            elif target.exists():
                target.unlink()
                changed += 1
            self._record.drop(path)
        # A run that was cut short between a file and RECORD is mended here, and counts as a change.
        return max(changed, int(self._record.save()))

    def _bytecode(self, file: Path, compile_bytecode: bool) -> None:
        for stale in sorted((file.parent / "__pycache__").glob(f"{file.stem}.*.pyc")):
            stale.unlink()
            self._record.drop(str(stale.relative_to(self._dist.site)))
        if compile_bytecode:
            # Unchecked hashes carry no time, so the bytes depend on the source alone (PEP 552).
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(file), doraise=True, invalidation_mode=mode)

    @property
    def entries(self) -> list[Entry]:
        return self._entries


def write_report(path: Path, entries: list[Entry]) -> None:
    """Write the rows as JSON, sorted, so that the same rows give the same bytes."""
    rows = sorted(
        (asdict(entry) for entry in entries), key=lambda row: (row["venv"], row["package"], row["id"], row["file"])
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps({"schema": 1, "patches": rows}, indent=1) + "\n")
    part.replace(path)


def read_report(path: Path) -> list[Entry]:
    """Read the rows of a report that this program wrote."""
    return [Entry(**row) for row in json.loads(path.read_text())["patches"]]


def run(venvs: list[Path], patches: Path, only: list[str], *, compile_bytecode: bool) -> list[Entry]:
    """Patch each environment; return the rows of the report. A named package that is not installed is an error."""
    folders = {_canonical(folder.name): folder for folder in sorted(patches.iterdir()) if folder.is_dir()}
    wanted = [_canonical(name) for name in only] or list(folders)
    jobs = []
    for venv in venvs:
        installed = distributions(site_packages(venv))
        for name in wanted:
            if name in installed and name in folders:
                jobs.append((venv, installed[name], Job(venv, installed[name], folders[name])))
            elif only:
                raise PatchError(f"{name} is not installed in {venv}" if name in folders else f"{name} has no patches")
    for _, _, job in jobs:
        job.plan()
    for venv, dist, job in jobs:
        changed = job.write(compile_bytecode=compile_bytecode)
        for entry in job.entries:
            print(f"{venv.name}: {dist.name} {dist.version}: {entry.id}: {entry.status} ({entry.why}): {entry.file}")
        what = f"{changed} files changed" if changed else "nothing to change, all is as it should be"
        print(f"{venv.name}: {dist.name} {dist.version}: {what}")
    return [entry for _, _, job in jobs for entry in job.entries]


def main(argv: list[str] | None = None) -> int:
    """The command line; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, action="append", default=[], help="a virtual environment; may be repeated")
    parser.add_argument("--patches", type=Path, help="the folder that holds one folder per package")
    parser.add_argument("--package", action="append", default=[], help="patch this package only; it must be installed")
    parser.add_argument("--report", type=Path, help="where to write the JSON report")
    parser.add_argument(
        "--report-dir", type=Path, help="write one report per venv and package, VENV.PACKAGE.json, here"
    )
    parser.add_argument("--compile", action="store_true", help="compile the patched files' bytecode anew")
    parser.add_argument("--merge", type=Path, nargs="+", help="join these reports into --report, and do nothing else")
    args = parser.parse_args(argv)
    try:
        if args.merge:
            if not args.report:
                parser.error("--merge needs --report")
            entries = [entry for path in args.merge for entry in read_report(path)]
        else:
            if not args.venv or not args.patches:
                parser.error("--venv and --patches are required")
            entries = run(args.venv, args.patches, args.package, compile_bytecode=args.compile)
        if args.report:
            write_report(args.report, entries)
        if args.report_dir:
            # Layers of one image then never write the same path.
            for venv, package in sorted({(entry.venv, entry.package) for entry in entries}):
                rows = [entry for entry in entries if (entry.venv, entry.package) == (venv, package)]
                write_report(args.report_dir / f"{Path(venv).name}.{_canonical(package)}.json", rows)
    except (PatchError, OSError, UnicodeDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
