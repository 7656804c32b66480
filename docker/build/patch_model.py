"""What a source patch is, and whether it fits a given file. Standard library only; no disk, no network.

Imported by apply_patches.py inside the build stage and by lockstep.patches on the host, so that `make patches` and
the build can never disagree about a patch.

A patch is a unified diff under a DEP-3 header (Debian Enhancement Proposal 3) with these fields more:

    Lockstep-Id         the name of the concern; several files may carry one id, each for other versions
    Lockstep-Package    the distribution that is patched
    Lockstep-Versions   the versions that this file is for, as `>=0.25,<0.28`; the lower bound is required
    Lockstep-Fixed-By   `PATH: REGEX`; where the regex matches, upstream has fixed it and the patch is not wanted
    Lockstep-Inert      the setting under which the patch matters; without it the patched code is never reached
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

# PEP 440 without epochs, which no patched package uses: release, pre-release, post-release, dev release, local part.
_VERSION = re.compile(
    r"(?P<release>\d+(?:\.\d+)*)(?:(?P<pre>a|b|rc)(?P<pre_n>\d+))?(?:\.post(?P<post>\d+))?(?:\.dev(?P<dev>\d+))?"
    r"(?:\+[a-z0-9.]+)?"
)
_CLAUSE = re.compile(r"(>=|<=|==|!=|<|>)\s*(\S+)")
_HUNK = re.compile(r"@@ -(?P<start>\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")
_FIELD = re.compile(r"(?P<name>[A-Z][A-Za-z-]*):[ \t]*(?P<value>.*)")
_REQUIRED = ("Description", "Forwarded", "Last-Update", "Lockstep-Id", "Lockstep-Package", "Lockstep-Versions")

Key = tuple[tuple[int, ...], tuple[int, int], int, int]


class PatchError(Exception):
    """A patch cannot be used; the text is one sentence for the user."""


def version_key(text: str) -> Key:
    """Return a key that sorts versions as PEP 440 does, the local part left out. PatchError where it is no version."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise PatchError(f"{text!r} is not a version")
    release = tuple(int(part) for part in match["release"].split("."))
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    dev = int(match["dev"]) if match["dev"] else 1 << 30
    if match["pre"]:
        pre = ("a", "b", "rc").index(match["pre"]), int(match["pre_n"])
    else:
        # A dev release of the final version comes before its first alpha, the final version after its last candidate.
        pre = (-1, 0) if match["dev"] and not match["post"] else (3, 0)
    return release, pre, int(match["post"]) if match["post"] else -1, dev


@dataclass(frozen=True)
class Range:
    """A set of versions, written as comma-separated clauses that must all hold."""

    text: str
    clauses: tuple[tuple[str, Key], ...]

    @staticmethod
    def parse(text: str) -> Range:
        """Read `>=0.25,<0.28`. PatchError where a clause is not understood or none gives a lower bound."""
        clauses = []
        for clause in text.split(","):
            match = _CLAUSE.fullmatch(clause.strip())
            if match is None:
                raise PatchError(f"{clause.strip()!r} is not a version clause such as >=0.25")
            clauses.append((match[1], version_key(match[2])))
        if not any(operator in {">=", "=="} for operator, _ in clauses):
            raise PatchError(f"the versions {text!r} have no lower bound, as in >=0.25,<0.28")
        return Range(text, tuple(clauses))

    def __contains__(self, version: str) -> bool:
        key = version_key(version)
        compare: dict[str, Callable[[Key], bool]] = {
            ">=": lambda bound: key >= bound,
            "<=": lambda bound: key <= bound,
            "==": lambda bound: key == bound,
            "!=": lambda bound: key != bound,
            "<": lambda bound: key < bound,
            ">": lambda bound: key > bound,
        }
        return all(compare[operator](bound) for operator, bound in self.clauses)

    @property
    def lowest(self) -> Key:
        """The version that the range begins at."""
        return min(bound for operator, bound in self.clauses if operator in {">=", "=="})


@dataclass(frozen=True)
class Hunk:
    """One change: `old` (the anchor: context and removed lines) becomes `new`. Both are whole lines."""

    path: str
    start: int
    old: str
    new: str


@dataclass(frozen=True)
class Patch:
    """A parsed patch file. `diff` is its text from the first `---` line on, header left out."""

    filename: str
    fields: dict[str, str]
    versions: Range
    hunks: tuple[Hunk, ...]
    diff: dict[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.fields["Lockstep-Id"]

    @property
    def package(self) -> str:
        return self.fields["Lockstep-Package"]

    @property
    def inert(self) -> str:
        return self.fields.get("Lockstep-Inert", "")

    @property
    def forwarded(self) -> str:
        return self.fields["Forwarded"]

    @property
    def summary(self) -> str:
        """The first line of the description."""
        return self.fields["Description"].split("\n", 1)[0]

    @property
    def fixed_by(self) -> tuple[str, re.Pattern[str]] | None:
        """The file and the regular expression that prove an upstream fix, or None where none is known."""
        value = self.fields.get("Lockstep-Fixed-By")
        if not value:
            return None
        path, _, pattern = value.partition(": ")
        return path, re.compile(pattern)

    @property
    def paths(self) -> list[str]:
        """The files that the patch changes, in the order of the diff."""
        return list(self.diff)

    @property
    def wanted(self) -> list[str]:
        """Every file that must be read to judge the patch: those it changes and the one that proves the fix."""
        proof = self.fixed_by
        return list(dict.fromkeys([*self.paths, *([proof[0]] if proof else [])]))


class State(StrEnum):
    """How a patch stands to the files that it changes."""

    APPLIES = "applies"
    APPLIED = "applied"
    FIXED = "fixed-upstream"
    BROKEN = "broken"
    NOT_NEEDED = "not-needed"
    UNDECLARED = "undeclared"


@dataclass(frozen=True)
class Verdict:
    """A concern on one version: the patch file that was judged, how it stands, and one clause that says why."""

    patch: Patch
    state: State
    why: str


def _header(lines: Sequence[str], filename: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    last = ""
    for line in lines:
        if line.startswith((" ", "\t")) and last:
            text = line.strip()
            fields[last] += "\n" + ("" if text == "." else text)
        elif match := _FIELD.fullmatch(line):
            last = match["name"]
            fields[last] = match["value"].strip()
        elif line.strip():
            raise PatchError(f"{filename}: the header line {line!r} is neither a field nor the continuation of one")
    missing = [name for name in _REQUIRED if name not in fields]
    if not {"Origin", "Bug"} & set(fields):
        missing.append("Origin or Bug")
    if missing:
        raise PatchError(f"{filename}: the header lacks {', '.join(missing)}")
    return fields


def _hunk(path: str, start: int, body: Sequence[str], filename: str) -> Hunk:
    old = "".join(line[1:] for line in body if line[:1] in {" ", "-"})
    new = "".join(line[1:] for line in body if line[:1] in {" ", "+"})
    if not body[0].startswith(" ") or not body[-1].startswith(" "):
        raise PatchError(f"{filename}: the hunk at line {start} of {path} needs a line of context on both sides")
    if new in old:
        # Then an unpatched file would look patched already.
        raise PatchError(f"{filename}: the hunk at line {start} of {path} needs more context")
    return Hunk(path, start, old, new)


def parse(text: str, filename: str) -> Patch:
    """Read a patch file. PatchError names the file and what is wrong with it.

    Only changes to existing files are understood: a patch creates, deletes and renames nothing.
    """
    lines = text.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if line.startswith("--- a/")), len(lines))
    fields = _header([line.rstrip("\n") for line in lines[:first] if line.strip() != "---"], filename)
    hunks: list[Hunk] = []
    diff: dict[str, str] = {}
    path, start, body = "", 0, list[str]()
    for line in [*lines[first:], "--- a/\n"]:
        begins = line.startswith("--- a/") or line.startswith("@@ ")
        if begins and body:
            hunks.append(_hunk(path, start, body, filename))
            body = []
        if line.startswith("--- a/"):
            path = line.removeprefix("--- a/").strip()
        elif line.startswith("+++ b/"):
            if line.removeprefix("+++ b/").strip() != path:
                raise PatchError(f"{filename}: renames {path}, and a patch may only change files")
        elif match := _HUNK.match(line):
            start = int(match["start"])
        elif line[:1] in {" ", "+", "-"}:
            body.append(line)
        else:
            raise PatchError(f"{filename}: the line {line.rstrip()!r} does not belong into a unified diff")
        if path:
            diff[path] = diff.get(path, "") + line
    if not hunks:
        raise PatchError(f"{filename}: holds no hunk")
    try:
        versions = Range.parse(fields["Lockstep-Versions"])
        patch = Patch(filename, fields, versions, tuple(hunks), diff)
        _ = patch.fixed_by
    except (PatchError, re.error) as error:
        raise PatchError(f"{filename}: {error}") from None
    return patch


def places(text: str, block: str) -> list[int]:
    """Return the offsets in `text` at which the whole lines of `block` stand."""
    found, at = [], text.find(block)
    while at >= 0:
        if at == 0 or text[at - 1] == "\n":
            found.append(at)
        at = text.find(block, at + 1)
    return found


def _hunk_state(text: str | None, hunk: Hunk) -> tuple[State, str]:
    if text is None:
        return State.BROKEN, f"{hunk.path} does not exist"
    before, after = len(places(text, hunk.old)), len(places(text, hunk.new))
    if before == 1 and not after:
        return State.APPLIES, ""
    # What is inserted may end as its own context does (two blank lines, say), so the patched text may hold the anchor.
    if after == 1 and before == len(places(hunk.new, hunk.old)):
        return State.APPLIED, ""
    where = f"the anchor at line {hunk.start} of {hunk.path}"
    if not before and not after:
        return State.BROKEN, f"{where} is gone"
    return State.BROKEN, f"{where} occurs {before + after} times, and must occur exactly once"


def judge(patch: Patch, read: Callable[[str], str | None]) -> Verdict:
    """Say how `patch` stands to the files, the declared versions left aside. read(path) gives None for no such file."""
    hunks = [_hunk_state(read(hunk.path), hunk) for hunk in patch.hunks]
    states = {state for state, _ in hunks}
    if states == {State.APPLIED}:
        return Verdict(patch, State.APPLIED, "is applied already")
    proof = patch.fixed_by
    if proof and proof[1].search(read(proof[0]) or ""):
        upstream = patch.fields.get("Applied-Upstream", "")
        return Verdict(patch, State.FIXED, f"fixed upstream{f' in {upstream}' if upstream else ''}")
    if states == {State.APPLIES}:
        return Verdict(patch, State.APPLIES, "every anchor occurs exactly once")
    why = next((why for state, why in hunks if state is State.BROKEN), "only some of its hunks are applied")
    return Verdict(patch, State.BROKEN, why)


def choose(patches: Iterable[Patch], version: str, read: Callable[[str], str | None]) -> list[Verdict]:
    """Judge every concern of one package at `version`, one verdict per id, in order of id.

    A version below every declared range does not have the fault (NOT_NEEDED). One that lies in no range and above the
    lowest must be proved fixed upstream; else the verdict is UNDECLARED or BROKEN, and a build stops.
    """
    concerns: dict[str, list[Patch]] = {}
    for patch in patches:
        concerns.setdefault(patch.id, []).append(patch)
    verdicts = []
    for _, variants in sorted(concerns.items()):
        variants.sort(key=lambda patch: patch.versions.lowest)
        fitting = [patch for patch in variants if version in patch.versions]
        if len(fitting) > 1:
            names = " and ".join(patch.filename for patch in fitting)
            raise PatchError(f"{names} are both declared for {fitting[0].package} {version}")
        if fitting:
            verdicts.append(judge(fitting[0], read))
            continue
        earlier = [patch for patch in variants if patch.versions.lowest <= version_key(version)]
        if not earlier:
            why = f"not needed before {variants[0].versions.text.split(',')[0].lstrip('>=')}"
            verdicts.append(Verdict(variants[0], State.NOT_NEEDED, why))
            continue
        verdict = judge(earlier[-1], read)
        if verdict.state in {State.APPLIES, State.APPLIED}:
            why = f"declared for {verdict.patch.versions.text} only; its anchors match"
            verdict = Verdict(verdict.patch, State.UNDECLARED, why)
        verdicts.append(verdict)
    return verdicts


def apply_text(patch: Patch, path: str, text: str, *, reverse: bool = False) -> str:
    """Return the text of `path` with the patch's hunks applied, or taken back. Every anchor must occur exactly once."""
    for hunk in patch.hunks:
        if hunk.path != path:
            continue
        old, new = (hunk.new, hunk.old) if reverse else (hunk.old, hunk.new)
        found = places(text, old)
        if len(found) != 1:
            raise PatchError(f"{patch.filename}: the anchor at line {hunk.start} of {path} occurs {len(found)} times")
        text = text[: found[0]] + new + text[found[0] + len(old) :]
    return text


def overlap(patches: Sequence[Patch], read: Callable[[str], str | None]) -> str:
    """Return a sentence naming two patches that touch the same lines of a file, or "" where none do."""
    spans: list[tuple[str, int, int, Patch]] = []
    for patch in patches:
        for hunk in patch.hunks:
            text = read(hunk.path) or ""
            for block in (hunk.old, hunk.new):
                spans += [(hunk.path, at, at + len(block), patch) for at in places(text, block)]
    spans.sort(key=lambda span: span[:3])
    for first, second in itertools.pairwise(spans):
        if first[0] == second[0] and second[1] < first[2] and first[3] is not second[3]:
            line = (read(first[0]) or "").count("\n", 0, second[1]) + 1
            return f"{first[3].filename} and {second[3].filename} both touch line {line} of {first[0]}"
    return ""
