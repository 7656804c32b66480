"""What a bump costs: bytes per layer of every image, stages and compiles to do again, and the minutes they took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lockstep.arch import Arch
from lockstep.build import layer_key
from lockstep.bump.model import ApartRow, CompileRow, LayerRow, Sized, StageRow
from lockstep.bump.workspace import Locks, locks_of
from lockstep.compile.environment import Target, targets
from lockstep.compile.job import key_of
from lockstep.errors import LockstepError
from lockstep.layers import Layer, plan
from lockstep.matrix import Matrix
from lockstep.record import Record, last_record


def layer_rows(
    old: Matrix, new: Matrix, image: str, arch: Arch, before: Locks, after: Locks
) -> tuple[list[LayerRow], Sized, list[StageRow]]:
    """Return what changes in one image: layers, the image's size, and the stages to run again.

    before, after: locks of all of the image's backends.
    """
    mates = new.images[image].backends
    was = {layer.name: layer for layer in plan(old, image, {name: before[name, arch] for name in mates})}
    now = {layer.name: layer for layer in plan(new, image, {name: after[name, arch] for name in mates})}
    record = last_record(image, arch)
    changed = [name for name in dict.fromkeys([*was, *now]) if _key(was.get(name)) != _key(now.get(name))]
    rows = [
        LayerRow(
            image=image,
            arch=arch.value,
            layer=name,
            bytes_before=was[name].size if name in was else 0,
            bytes_after=now[name].size if name in now else 0,
            packages=_moved(was.get(name), now.get(name)),
        )
        for name in changed
    ]
    stages = [_stage(image, arch, now[name], was.get(name), record) for name in changed if name in now]
    before_size, after_size = (sum(layer.size for layer in side.values()) for side in (was, now))
    new_bytes = sum(row.bytes_after for row in rows)
    export = record.seconds.get("export") if record else None
    sized = Sized(
        image=image,
        arch=arch.value,
        bytes_before=before_size,
        bytes_after=after_size,
        layers=len(now),
        changed=len(stages),
        export_seconds=export * new_bytes / after_size if export and after_size else None,
    )
    return rows, sized, stages


def _key(layer: Layer | None) -> str:
    return layer_key(layer) if layer else ""


def _moved(was: Layer | None, now: Layer | None) -> list[str]:
    """Return `name old → new` of each wheel that differs between two states of a layer."""
    old = {wheel.name: wheel.version for wheel in was.wheels} if was else {}
    new = {wheel.name: wheel.version for wheel in now.wheels} if now else {}
    return [
        f"{name} {old.get(name, '–')} → {new.get(name, '–')}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _stage(image: str, arch: Arch, now: Layer, was: Layer | None, record: Record | None) -> StageRow:
    seconds, basis = record.seconds_of(now, was.size if was else 0) if record else (None, "no build is recorded here")
    return StageRow(image=image, arch=arch.value, layer=now.name, seconds=seconds, basis=basis)


def apart_rows(matrix: Matrix, image: str, arch: Arch, before: Locks, after: Locks) -> list[ApartRow]:
    """Return the wheels that the image's backends shared before the bump and do not share after it."""
    mates = matrix.images[image].backends
    rows = []
    for package in sorted({wheel.name for name in mates for wheel in after[name, arch].wheels}):
        was = {name: wheel for name in mates if (wheel := before[name, arch].by_name().get(package))}
        now = {name: wheel for name in mates if (wheel := after[name, arch].by_name().get(package))}
        if len(set(now.values())) <= len({was[name] for name in was if name in now}):
            continue
        if len(was) < 2 or len(set(was.values())) == len(was):
            continue
        extra = sum(wheel.size for wheel in set(now.values())) - sum(wheel.size for wheel in set(was.values()))
        versions = {name: wheel.version for name, wheel in now.items()}
        rows.append(ApartRow(image=image, arch=arch.value, package=package, versions=versions, extra=extra))
    return rows


def images_with(matrix: Matrix, names: Iterable[str]) -> list[str]:
    """Return the images that hold any of the backends."""
    wanted = set(names)
    return [image for image, spec in matrix.images.items() if wanted & set(spec.backends)]


def all_locks(matrix: Matrix, images: Sequence[str], root: Path) -> Locks:
    """Return the locks of all backends of some images."""
    names = dict.fromkeys(name for image in images for name in matrix.images[image].backends)
    return locks_of(matrix, list(names), root)


def compile_rows(old: Matrix, new: Matrix, names: Iterable[str], root: Path, new_root: Path) -> list[CompileRow]:
    """Return the wheels of some backends whose cache key the bump changes: they have to be compiled again."""
    wanted = set(names)
    rows = []
    for arch in new.targets():
        for target in targets(new, arch):
            users = {
                name for name in wanted
                if new.backends[name].line == target.line
                and target.package in {*new.backends[name].compile, *new.backends[name].optional}
            }  # fmt: skip
            if not users:
                continue
            before, after = _digest(old, target, root), _digest(new, target, new_root)
            if before != after:
                why = after if after.startswith("its build") else "what it is built from changes"
                rows.append(CompileRow(package=target.package, line=target.line, arch=arch.value, why=why))
    return rows


def _digest(matrix: Matrix, target: Target, root: Path) -> str:
    try:
        return key_of(matrix, target, root).digest()
    except LockstepError as error:
        return f"its build environment has to be locked again: {error.what}"
