"""What a layer's stage is built from, read out of the rendered Dockerfile: the same things that BuildKit's key holds.

The Dockerfile is the whole truth of an image, so nothing is listed twice: whatever a stage copies, mounts, runs or is
made FROM is a part of it, with a value that changes when it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from lockstep.arch import Arch, host_arch

_FROM = re.compile(r"^FROM (?:--platform=\S+ )?(?P<base>\S+) AS (?P<name>\S+)$")
_MOUNT = re.compile(r"--mount=type=bind,source=(?P<source>[^,\s]+),target=")
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?P<rest>.*)$")


@dataclass(frozen=True)
class _Instruction:
    """One instruction, continuation lines joined, and the lines of its heredoc."""

    word: str
    text: str
    body: tuple[str, ...]


def stage_parts(dockerfile: str, layers: tuple[str, ...], arch: Arch, root: Path) -> dict[str, dict[str, str]]:
    """Return, for each layer of one architecture, the parts of its stage and their values.

    Parts are named for people: `wheel vllm`, `docker/build/install.py`, `builder base`, `uv`, `SOURCE_DATE_EPOCH`,
    `venvs`, `command`. Values are versions, paths or short hashes. root: what the Dockerfile's paths are relative to.
    """
    stages = _stages(dockerfile)
    hashes: dict[str, str] = {}
    shared: dict[str, dict[str, str]] = {}
    found = {}
    for layer in layers:
        name = f"{arch.docker}-{layer}"
        if name in stages:
            found[layer] = _parts(name, stages, root, hashes, shared)
    return found


def _stages(text: str) -> dict[str, tuple[str, list[_Instruction]]]:
    """Return each stage's base and instructions."""
    stages: dict[str, tuple[str, list[_Instruction]]] = {}
    current: list[_Instruction] = []
    for instruction in _instructions(text):
        match = _FROM.match(f"{instruction.word} {instruction.text}")
        if match:
            current = []
            stages[match["name"]] = (match["base"], current)
        else:
            current.append(instruction)
    return stages


def _instructions(text: str) -> Iterator[_Instruction]:
    lines = iter(text.splitlines())
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        joined = line
        while joined.endswith("\\"):
            joined = joined[:-1].rstrip() + " " + next(lines, "").strip()
        body: list[str] = []
        if match := re.search(r"<<-?['\"]?(\w+)['\"]?\s*$", joined):
            for inner in lines:
                if inner == match[1]:
                    break
                body.append(inner)
        word, _, rest = joined.partition(" ")
        yield _Instruction(word, rest, tuple(body))


def _parts(
    name: str,
    stages: dict[str, tuple[str, list[_Instruction]]],
    root: Path,
    hashes: dict[str, str],
    shared: dict[str, dict[str, str]],
) -> dict[str, str]:
    base, instructions = stages[name]
    base = base.replace("${BUILDARCH}", host_arch().docker)
    parts: dict[str, str] = {}
    if base in stages:
        if base not in shared:
            shared[base] = _parts(base, stages, root, hashes, shared)
        parts |= shared[base]
    elif base != "scratch":
        parts["builder base"] = base
    for instruction in instructions:
        parts |= _of(instruction, root, hashes)
    return parts


def _of(instruction: _Instruction, root: Path, hashes: dict[str, str]) -> dict[str, str]:
    words = instruction.text.split()
    if instruction.word == "ADD":
        return {"builder base": words[0]}
    if instruction.word == "ENV":
        return dict(word.split("=", 1) for word in words if "=" in word)
    if instruction.word == "COPY" and not any(word.startswith("--from") for word in words):
        return {word: _hash(root / word, hashes) for word in words[:-1] if not word.startswith("--")}
    if instruction.word != "RUN":
        return {}
    parts = {source: _hash(root / source, hashes) for source in _MOUNT.findall(instruction.text)}
    command = re.sub(r"--mount=\S+ *", "", instruction.text)
    venvs: list[str] = []
    for line in instruction.body:
        if line.startswith("["):
            venvs.append(line.strip("[] "))
        elif match := _REQUIREMENT.match(line):
            label = match["name"] if not venvs else f"wheel {match['name']}"
            known = parts.get(label, "").split(" for ", 1)[0]
            value = f"{match['version']} ({_short(match['rest'])})"
            # One package may be there in two versions, one per venv.
            parts[label] = f"{known}, {value}" if known and known != value else value
        elif line.strip():
            parts[f"wheel {line}"] = "as it is in wheels/"
    if venvs:
        parts["venvs"] = " ".join(dict.fromkeys(venvs))
        parts["command"] = command
    else:
        parts[f"command of {Path(next((w for w in command.split() if w.endswith('.py')), 'the stage')).name}"] = command
    return parts


def _short(text: str) -> str:
    """Return the first digits of a line's hash, or a hash of the line where it bears none."""
    match = re.search(r"sha256:([0-9a-f]{12})", text)
    return match[1] if match else sha256(text.encode()).hexdigest()[:12]


def _hash(path: Path, hashes: dict[str, str]) -> str:
    """Return a short hash of a file, or of a folder's files and their paths; `missing` where it is not there."""
    key = str(path)
    if key not in hashes:
        total = sha256()
        files = sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path]
        for item in files:
            if "__pycache__" in item.parts:
                continue
            try:
                total.update(f"{item.relative_to(path)}\0".encode() + item.read_bytes())
            except OSError:
                hashes[key] = "missing"
                return "missing"
        hashes[key] = total.hexdigest()[:12]
    return hashes[key]


def split_shared(stages: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return what all stages have in common, and the rest of each: a record needs the former once."""
    first = next(iter(stages.values()), {})
    shared = {
        name: value for name, value in first.items() if all(parts.get(name) == value for parts in stages.values())
    }
    rest = {
        layer: {name: value for name, value in parts.items() if name not in shared} for layer, parts in stages.items()
    }
    return shared, rest
