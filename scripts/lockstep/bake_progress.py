"""Follow a bake: which step runs, which came from the cache, how long each took, and what a failed one said.

Reads `--progress rawjson`: one JSON object per event, spread over several lines by buildx 0.13 and on one line by
later ones.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lockstep.console import err, note

_LAYER = re.compile(r"\[(?:amd64|arm64)-(?P<layer>\S+)[^\]]*\] RUN")
_STEP = re.compile(r"\[(?P<stage>[a-z0-9][^\s\]]*)[^\]]*\] (?P<word>[A-Z]+)")
_TAIL = 25


@dataclass(frozen=True)
class Step:
    """One finished step. `name` is a layer's name for an install step, else stage and instruction, or `export`."""

    name: str
    seconds: float
    cached: bool
    layer: bool


@dataclass
class _Vertex:
    name: str
    started: datetime | None = None
    seconds: float = 0.0
    cached: bool = False
    completed: bool = False
    error: str = ""


class Follower:
    """Takes bake's lines one by one; knows every step in the end."""

    def __init__(self, layers: int) -> None:
        self._vertices: dict[str, _Vertex] = {}
        self._logs: dict[str, list[str]] = {}
        self._buffer: list[str] = []
        self._other: list[str] = []
        self._layers = layers
        self._progress: Progress | None = None

    @contextmanager
    def display(self) -> Iterator[None]:
        """Show a bar of the layers on a terminal; in a pipe, one line per finished layer."""
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=err,
            disable=not err.is_terminal,
        ) as progress:
            self._progress = progress
            self._task = progress.add_task("layers", total=self._layers)
            yield

    def feed(self, raw: bytes) -> None:
        """Take one line of bake's output."""
        line = raw.decode(errors="replace").rstrip("\n")
        if not self._buffer and not line.startswith("{"):
            if line.strip():
                self._other.append(line)
            return
        self._buffer.append(line)
        if line.endswith("}") and not line.startswith(" "):
            text = "\n".join(self._buffer)
            try:
                event = json.loads(text)
            except ValueError:
                return
            self._buffer = []
            self._event(event)

    def _event(self, event: dict[str, Any]) -> None:
        for item in event.get("vertexes") or []:
            self._vertex(item)
        for item in event.get("logs") or []:
            text = base64.b64decode(item.get("data", "")).decode(errors="replace")
            lines = self._logs.setdefault(str(item.get("vertex")), [])
            lines += [line for line in text.splitlines() if line.strip()]
            del lines[:-_TAIL]

    def _vertex(self, item: dict[str, Any]) -> None:
        vertex = self._vertices.setdefault(str(item["digest"]), _Vertex(str(item.get("name", ""))))
        vertex.cached = vertex.cached or bool(item.get("cached"))
        vertex.error = str(item.get("error") or vertex.error)
        if started := item.get("started"):
            vertex.started = _time(started)
        if (completed := item.get("completed")) and vertex.started:
            vertex.seconds = (_time(completed) - vertex.started).total_seconds()
            if not vertex.completed:
                vertex.completed = True
                self._say(vertex)

    def _say(self, vertex: _Vertex) -> None:
        match = _LAYER.match(vertex.name)
        if match is None:
            return
        state = "cached" if vertex.cached else f"{vertex.seconds:.0f} s"
        if self._progress is not None and err.is_terminal:
            self._progress.update(self._task, advance=1, description=f"{match['layer']} {state}")
        else:
            note(f"layer {match['layer']}: {state}")

    def steps(self) -> list[Step]:
        """Return the finished steps that took part: layers, other instructions and the export."""
        found = []
        for vertex in self._vertices.values():
            layer, step = _LAYER.match(vertex.name), _STEP.match(vertex.name)
            if not vertex.completed:
                continue
            if layer:
                found.append(Step(layer["layer"], vertex.seconds, vertex.cached, True))
            elif step and not vertex.name.startswith("[internal]"):
                found.append(Step(f"{step['stage']} {step['word']}", vertex.seconds, vertex.cached, False))
            elif vertex.name.startswith("exporting"):
                found.append(Step("export", vertex.seconds, vertex.cached, False))
        return found

    def cache_faults(self) -> list[str]:
        """Return what went wrong with reading or writing a BuildKit cache; the image is there all the same."""
        return [
            f"{vertex.name}: {vertex.error.splitlines()[-1][:200]}"
            for vertex in self._vertices.values()
            if vertex.error and vertex.name.startswith(("importing cache", "exporting cache"))
        ]

    def failure(self) -> str:
        """Return what the first failed step said, or bake's own last lines; empty where there is neither."""
        for key, vertex in self._vertices.items():
            if vertex.error and "context canceled" not in vertex.error:
                said = "\n".join(self._logs.get(key, []))
                return (
                    f"step {vertex.name.splitlines()[0][:100]} failed:\n{said}\n{vertex.error.splitlines()[-1][:300]}"
                )
        return "\n".join(self._other[-_TAIL:])


def _time(text: str) -> datetime:
    """Parse Go's RFC 3339 time, whose fraction has up to nine digits; Python takes six."""
    return datetime.fromisoformat(re.sub(r"(\.\d{1,6})\d*", r"\1", text).replace("Z", "+00:00"))
