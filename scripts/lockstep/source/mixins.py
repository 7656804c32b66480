"""Classes that the package mixes into its own: names that both have, along the target's real MRO."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.source.config import WorkerExtension
from lockstep.source.findings import Finding
from lockstep.source.values import ClassInfo, Member
from lockstep.source.world import World

# What a class body or a method puts on the class or the instance: an import or a bare annotation puts nothing there.
_REAL = {"method", "property", "value", "class"}


def collisions(world: World, extension: WorkerExtension, where: str, before: World | None) -> Iterator[Finding]:
    """Yield each name of the extension (bases included) that the target has too.

    vLLM builds `type(name, (worker, extension))` and asserts that the worker lacks every name of the extension that
    does not start with two underscores (v1/worker/worker_base.py, init_worker). An attribute that both only assign on
    the instance is told only where the target did not have it before.
    """
    mixed = world.class_of(extension.cls)
    target = world.class_of(extension.target)
    for name, info in ((extension.cls, mixed), (extension.target, target)):
        if info is None:
            yield Finding("config", where, 0, name, f"there is no class {name}", "correct the configuration")
    if mixed is None or target is None:
        return
    had = before.class_of(extension.target) if before is not None else None
    old = before.classes.all_names(had) if before is not None and had is not None else None
    theirs = world.classes.all_names(target)
    shared = set(world.classes.mro(target)[0])
    for name, member in sorted(world.classes.all_names(mixed).items()):
        other = theirs.get(name)
        if name.startswith("__") or name == "*" or other is None or member.owner in shared:
            continue
        if not _collide(member, other, known_before=old is None or name in old):
            continue
        yield _collision(member, target, other)


def _collide(member: Member, other: Member, *, known_before: bool) -> bool:
    if other.kind in {"note", "import"} or member.kind in {"note", "import"}:
        return False
    if member.kind in _REAL or other.kind in {"method", "property"}:
        return True
    return not known_before


def _collision(member: Member, target: ClassInfo, other: Member) -> Finding:
    place = f"{other.owner.module.path}:{getattr(other.node, 'lineno', 0)}"
    inherited = "" if other.owner is target else f" (from {other.owner.name})"
    return Finding(
        "collision",
        member.owner.module.path,
        getattr(member.node, "lineno", 0),
        f"{member.owner.name}.{member.name}",
        f"`{member.name}` is also a name of {target.name}{inherited}, at {place}: mixing the two fails or hides one",
        f"rename it in {member.owner.name}, and in whatever calls it",
    )
