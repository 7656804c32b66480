"""The whole of a bump: plan the edits, resolve in a copy, gather the report, and only then touch the checkout."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lockstep.bump import cost, forecast
from lockstep.bump.edit import Edit, apply
from lockstep.bump.follow import Plan, plan
from lockstep.bump.model import BlockRow, Cost, EditRow, FollowRow, Report
from lockstep.bump.workspace import Locks, Workspace, locks_of, require_fresh, workspace
from lockstep.console import note
from lockstep.errors import LockstepError
from lockstep.index import _session
from lockstep.lock import inputs_of
from lockstep.lockdiff import locks_now
from lockstep.matrix import Matrix
from lockstep.matrix.load import parse
from lockstep.paths import ROOT, VERSIONS


@dataclass(frozen=True)
class Request:
    """What was asked. package: the backend's own where empty. abi_bytes: what may be downloaded to look into."""

    to: str
    backend: str = ""
    package: str = ""
    dry_run: bool = False
    abi_bytes: int = 0


@dataclass
class _State:
    """One side: the matrix, and the locks of every backend that moved."""

    old: Matrix
    new: Matrix
    plan: Plan
    touched: list[str]
    before: Locks = field(default_factory=dict)
    after: Locks = field(default_factory=dict)
    resolved: list[str] = field(default_factory=list)
    follows: list[FollowRow] = field(default_factory=list)


def main_package(matrix: Matrix, backend: str) -> str:
    """Return the package that a backend is about: the one of its name, else the first that it requires."""
    names = [canonicalize_name(Requirement(text).name) for text in matrix.backends[backend].requires]
    return backend if backend in names else names[0]


def bump(request: Request) -> Report:
    """Make the bump, or only report it; return the report. LockstepError where the request itself makes no sense."""
    began = time.monotonic()
    text = VERSIONS.read_text(encoding="utf-8")
    old = parse(text, VERSIONS.name)
    package = _package(old, request)
    locked = {
        name: wheel.version
        for (name, _), lock in locks_now(old).items()
        if (wheel := lock.by_name().get(package)) is not None
    }
    with _counted() as counter:
        made = plan(old, package, request.to, request.backend, locked)
        hypothetical = bool(made.what_if) and all(block.kind == "line" for block in made.blocks)
        edits = made.edits + (made.what_if if hypothetical else [])
        new = _parsed(text, edits, made)
        with workspace() as copy:
            state = _State(old, new or old, made, _touched(old, new or old, made))
            state.before = require_fresh(old, state.touched)
            if new is not None and (hypothetical or not made.blocks):
                _resolve(state, copy, hypothetical)
            sections = _sections(state, copy, request)
            report = Report(
                package=package,
                before=made.before,
                to=request.to,
                backends=list(made.backends),
                dry_run=request.dry_run,
                locked=set(state.touched) == set(state.resolved) and not made.blocks,
                what_if=hypothetical,
                edits=[_edit(edit) for edit in made.edits]
                + [_edit(edit, hypothetical=True) for edit in made.what_if if hypothetical],
                blocks=made.blocks,
                left=[f"{pin.backend} has {package} {pin.version}" for pin in made.left],
                follows=state.follows,
                cost=Cost(seconds=round(time.monotonic() - began, 1), fetched_bytes=counter[0]),
                **sections,
            )
            if report.locked and not request.dry_run:
                copy.publish(apply(text, made.edits), state.touched, state.new)
                _render()
    return report


def _package(matrix: Matrix, request: Request) -> str:
    if request.backend and request.backend not in matrix.backends:
        raise LockstepError(
            f'there is no backend "{request.backend}"',
            where="versions.yaml",
            fix=f"name one of {', '.join(matrix.backends)}",
        )
    if not (request.package or request.backend) or not request.to:
        what = "nothing to bump is named" if request.to else "no version to move to is named"
        raise LockstepError(what, fix="say BACKEND= or PACKAGE=, and TO=")
    return canonicalize_name(request.package) or main_package(matrix, request.backend)


def _parsed(text: str, edits: list[Edit], made: Plan) -> Matrix | None:
    """Return the matrix after the edits; a contradiction inside the file becomes a block of the plan."""
    try:
        return parse(apply(text, edits), VERSIONS.name)
    except LockstepError as error:
        made.blocks.append(BlockRow(kind="matrix", what=f"{error.where}: {error.what}", fix=error.fix))
        return None


def _touched(old: Matrix, new: Matrix, made: Plan) -> list[str]:
    """Return the backends to resolve again, the bumped ones first."""
    changed = [
        name
        for name in new.backends
        if any(inputs_of(old, name, arch) != inputs_of(new, name, arch) for arch in new.targets())
    ]
    own = [name for name in made.backends if name in changed or not made.pinned]
    return list(dict.fromkeys([*own, *changed]))


def _resolve(state: _State, copy: Workspace, hypothetical: bool) -> None:
    """Resolve every touched backend in the copy; what cannot be resolved is a finding."""
    own = state.plan.backends
    for name in state.touched:
        note(f"resolving {name}{' (what if the line moved)' if hypothetical else ''}")
        rider = hypothetical and name not in own
        # A rider is only asked whether it could follow: one architecture answers that in half the time.
        matrix = state.new.model_copy(update={"arches": state.new.arches[:1]}) if rider else state.new
        error = None
        try:
            if state.plan.pinned:
                copy.relock(matrix, name)
            else:
                copy.relock(matrix, name, state.plan.package, state.plan.to)
        except LockstepError as fault:
            error = fault
        line = state.new.backends[name].line
        if error is None:
            state.resolved.append(name)
            what = f"resolves on {', '.join(matrix.arches)}"
        else:
            what = f"cannot follow: {error.what}"
            if not hypothetical:
                state.plan.blocks.append(BlockRow(kind="resolve", what=f"{name}: {error.what}", fix=error.fix))
        state.follows.append(
            FollowRow(backend=name, line=line, follows=error is None, what=what, hypothetical=hypothetical)
        )
    found = locks_of(state.new, state.resolved, copy.root)
    for name in state.resolved:
        rider = hypothetical and name not in own
        for arch in state.new.targets()[: 1 if rider else None]:
            state.after[name, arch] = found[name, arch]


def _sections(state: _State, copy: Workspace, request: Request) -> dict[str, Any]:
    """Compute what follows from the locks; a section that cannot be computed says why in `not_computed`."""
    failed: dict[str, str] = {}
    coverage: dict[str, str] = {}
    done: dict[str, Any] = {"not_computed": failed, "coverage": coverage}
    own = [name for name in state.plan.backends if name in state.resolved]
    if not own:
        why = "there is no lock for it: see what stands in the way"
        failed.update(dict.fromkeys(("moves", "rules", "findings", "abi", "patches", "sources", "layers"), why))
        return done
    before = {key: lock for key, lock in state.before.items() if key[0] in own}
    after = {key: lock for key, lock in state.after.items() if key[0] in own}
    cards = forecast.Cards()
    done["moves"] = forecast.move_rows(state.new, before, after)

    def rules() -> None:
        done["rules"] = [
            row for name in own for row in forecast.rule_rows(state.old, state.new, before, after, name, cards)
        ]

    def findings() -> None:
        done["findings"] = [
            row for name in own for row in forecast.finding_rows(state.old, state.new, before, after, name, cards)
        ]

    def abi() -> None:
        found = [forecast.abi_rows(state.new, before, after, name, request.abi_bytes) for name in own]
        done["abi"] = [row for rows, _, _ in found for row in rows]
        coverage["abi"] = "; ".join(said for _, said, _ in found if said)
        if all(why for _, _, why in found):
            failed["abi"] = "; ".join(why for _, _, why in found)

    def patches() -> None:
        done["patches"], _ = forecast.patch_rows(state.new, done["moves"], after)
        if not done["patches"]:
            failed["patches"] = "no package that moved is patched"

    def sources() -> None:
        done["sources"], said, _ = forecast.source_rows(state.new, done["moves"])
        coverage["sources"] = "; ".join(said)
        if not state.new.downstream:
            failed["sources"] = "versions.yaml names no source tree under `downstream`"
        elif not said:
            failed["sources"] = "no package that moved is used by a tree under `downstream`"

    for name, compute in (
        ("rules", rules), ("findings", findings), ("abi", abi), ("patches", patches), ("sources", sources),
        ("layers", lambda: _layers(state, copy, own, done)),
    ):  # fmt: skip
        note(f"looking at {name}")
        forecast.guarded(name, failed, compute)
    return done


def _layers(state: _State, copy: Workspace, own: list[str], done: dict[str, Any]) -> None:
    images = cost.images_with(state.new, own)
    before, after = cost.all_locks(state.old, images, ROOT), cost.all_locks(state.new, images, copy.root)
    done["layers"], done["images"], done["stages"], done["apart"] = [], [], [], []
    for image in images:
        for arch in state.new.targets():
            if all((name, arch) in before and (name, arch) in after for name in state.new.images[image].backends):
                rows, sized, stages = cost.layer_rows(state.old, state.new, image, arch, before, after)
                done["layers"] += rows
                done["images"].append(sized)
                done["stages"] += stages
                done["apart"] += cost.apart_rows(state.new, image, arch, before, after)
    done["compiles"] = cost.compile_rows(state.old, state.new, state.resolved, ROOT, copy.root)


def _edit(edit: Edit, *, hypothetical: bool = False) -> EditRow:
    return EditRow(where=edit.where, before=edit.before, after=edit.after, why=edit.why, hypothetical=hypothetical)


def _render() -> None:
    from lockstep.matrix import load
    from lockstep.render import render, write

    for path in write(render(load())):
        note(f"rendered {path.relative_to(ROOT)}")


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Yield a list of one number: the bytes that this process has fetched from the index so far."""
    total = [0]
    session = _session()

    def count(response: Any, *_: Any, **__: Any) -> None:
        total[0] += int(response.headers.get("Content-Length") or len(response.content))

    session.hooks["response"].append(count)
    try:
        yield total
    finally:
        session.hooks["response"].remove(count)


def written_to(request: Request, report: Report) -> Path:
    """Return where a report goes, without a suffix: build/bump/<backend or package>-<version>."""
    return ROOT / "build" / "bump" / f"{request.backend or report.package}-{report.to}"
