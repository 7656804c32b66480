"""`make why LAYER=…`: why a layer would be built again, compared with the last build that was recorded, or that not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.arch import Arch
from lockstep.build import layer_key
from lockstep.errors import LockstepError
from lockstep.layers import Layer, plan
from lockstep.lock import read_lock
from lockstep.matrix import Matrix
from lockstep.paths import ROOT
from lockstep.record import Record, last_record, record_path
from lockstep.render import render, render_narrowed
from lockstep.stage_parts import stage_parts

_MEANING = {
    "builder base": "the root file system that stages run on: its packages or the epoch changed",
    "SOURCE_DATE_EPOCH": "the epoch",
    "uv": "the installer",
    "command": "how the stage calls install.py",
}


@dataclass(frozen=True)
class Reason:
    """One thing that differs from the last build: what it is, before and now; empty where it was or is not there."""

    what: str
    before: str
    now: str

    def sentence(self) -> str:
        """Return it for people."""
        name = self.what.removeprefix("wheel ")
        meaning = f" ({_MEANING[self.what]})" if self.what in _MEANING else ""
        if not self.before:
            return f"{name} {self.now} comes in{meaning}"
        if not self.now:
            return f"{name} {self.before} goes out{meaning}"
        return f"{name}: {self.before} → {self.now}{meaning}"


@dataclass(frozen=True)
class Answer:
    """The answer for one layer. seconds: how long its stage took last, None where that is not known."""

    layer: str
    reasons: tuple[Reason, ...]
    known: bool
    seconds: float | None = None
    partial: bool = False
    """Whether the record holds the wheels alone, so that nothing else could be compared."""

    @property
    def rebuilt(self) -> bool:
        """Whether it would be built again."""
        return bool(self.reasons) or not self.known


def explain_layer(matrix: Matrix, image: str, arch: Arch, layer: str, root: Path = ROOT) -> Answer:
    """Compare one layer of an image with the last recorded build. LockstepError where the image has no such layer."""
    layers = planned(matrix, image, arch, root)
    names = [item.name for item in layers]
    record = last_record(image, arch)
    gone = record is not None and layer in record.names()
    if layer not in names and not gone:
        close = [name for name in names if layer.rsplit("-", 1)[-1] in name] or names
        raise LockstepError(
            f'image {image} has no layer "{layer}"',
            where=f"images/{image}",
            fix=f"name one of {', '.join(close[:8])} (`make plan IMAGE={image}` lists all)",
        )
    now = current_parts(matrix, image, arch, layers, root).get(layer, {})
    if record is None:
        return Answer(layer, (), known=False)
    before = recorded_parts(record_path(image, arch)).get(layer)
    if before is None:
        return _by_wheels(layer, layers, record)
    return Answer(layer, tuple(differences(before, now)), True, record.seconds.get(layer))


def planned(matrix: Matrix, image: str, arch: Arch, root: Path) -> tuple[Layer, ...]:
    """Return the layers of an image as its locks are now."""
    locks = {name: read_lock(name, arch, root) for name in matrix.images[image].backends}
    return plan(matrix, image, locks)


def current_parts(
    matrix: Matrix, image: str, arch: Arch, layers: tuple[Layer, ...], root: Path = ROOT
) -> dict[str, dict[str, str]]:
    """Return what each layer would be built from now: from the Dockerfile as it would be rendered."""
    files = {path.parent.name: text for path, text in render(matrix, root).items() if path.name == "Dockerfile"}
    if image not in files:
        narrowed = render_narrowed(matrix, image, root)
        files |= {path.parent.name: text for path, text in narrowed.items() if path.name == "Dockerfile"}
    return stage_parts(files[image], tuple(layer.name for layer in layers), arch, root)


def recorded_parts(path: Path) -> dict[str, dict[str, str]]:
    """Return what the last build recorded of each layer's stage; empty where an older Lockstep wrote it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    stages = data.get("stages")
    if not isinstance(stages, dict):
        return {}
    shared = data.get("shared") if isinstance(data.get("shared"), dict) else {}
    return {name: {**shared, **parts} for name, parts in stages.items()}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[Reason]:
    """Return the parts that differ, wheels first."""
    names = sorted({*before, *now}, key=lambda name: (not name.startswith("wheel "), name))
    return [
        Reason(name, before.get(name, ""), now.get(name, "")) for name in names if before.get(name) != now.get(name)
    ]


def _by_wheels(layer: str, layers: tuple[Layer, ...], record: Record) -> Answer:
    """Compare by what an older record holds: the wheels alone, by hash."""
    was = record.names().get(layer)
    if was is None:
        return Answer(layer, (Reason(f"layer {layer}", "", "which the last build did not have"),), True)
    now = next((item for item in layers if item.name == layer), None)
    if now is None:
        return Answer(layer, (Reason(f"layer {layer}", "which the last build had", ""),), True)
    if layer_key(now) in record.layers:
        return Answer(layer, (), True, record.seconds.get(layer), partial=True)
    fresh = [
        Reason(f"wheel {wheel.name}", "", wheel.version)
        for wheel in now.wheels
        if (wheel.sha256[:16] or wheel.requirement()) not in was
    ]
    gone = len(was) - (len(now.wheels) - len(fresh))
    if gone:
        fresh.append(Reason(f"{gone} wheels of the last build", "(the record does not name them)", ""))
    return Answer(layer, tuple(fresh), True, record.seconds.get(layer), partial=True)
