"""The whole check: fetch the versions, walk the tree against each, compare."""

from __future__ import annotations

import datetime
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from lockstep.source import mirrors, mixins, proxies
from lockstep.source.changes import attribute_findings, change_findings, class_findings
from lockstep.source.check import Seen, Uses, call_findings
from lockstep.source.config import SourceConfig, load_config
from lockstep.source.extensions import named_extensions
from lockstep.source.fetch import Sources, fetch_sources
from lockstep.source.findings import KINDS, Finding
from lockstep.source.infer import Infer
from lockstep.source.model import Module
from lockstep.source.report import SourceReport, accept
from lockstep.source.signature import Signatures
from lockstep.source.tree import Tree
from lockstep.source.walk import Walk
from lockstep.source.watch import watched
from lockstep.source.world import World

_DEEPEST = 20_000
_CHECKED = ("imports", "attributes", "calls", "names in strings")


@dataclass
class _Version:
    """The tree against one version."""

    sources: Sources
    tree: Tree
    seen: Seen = field(default_factory=Seen)

    @cached_property
    def world(self) -> World:
        return World(self.sources, self.tree)

    @cached_property
    def infer(self) -> Infer:
        return Infer(self.world)

    def walk(self, modules: list[Module]) -> None:
        """Look at every file once."""
        uses = Uses(self.world, self.infer, Signatures(self.world))
        walk = Walk(self.infer, uses)
        for module in modules:
            try:
                walk.module(module)
            except RecursionError:
                uses.seen.counts["files nested too deep"] += 1
        self.seen = uses.seen

    def findings(self, before: _Version | None, config: SourceConfig, where: str) -> Iterator[Finding]:
        """Yield what breaks at this version; `before` tells what was there."""
        seen, world = self.seen, self.world
        old = before.world if before else None
        yield from seen.imports.values()
        yield from attribute_findings(world, seen, before.seen if before else None)
        for call in seen.calls.values():
            yield from call_findings(call)
        for extension in config.worker_extensions:
            yield from mixins.collisions(world, extension, where, old)
        for proxy in config.proxies:
            yield from proxies.lacking(world, self.infer, proxy, where)


def check_source(
    root: Path, package: str, to: str, frm: str | None = None, config: SourceConfig | None = None
) -> SourceReport:
    """Check the Python files below `root` against version `to` of `package`, and say what `frm` had and `to` has not.

    to, frm: a version, or the path of a wheel or of a folder with the sources. config: as in pyproject.toml or
    lockstep-source.toml; read from there when left out. LockstepError where the tree, the version or the
    configuration is not there or cannot be read. A file that does not parse is a finding.
    """
    started = time.monotonic()
    # Long sums and chains of calls nest one level each; generated code has thousands.
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEEPEST))
    tree = Tree(root)
    where = "the configuration"
    if config is None:
        config, where = load_config(tree.root)
    new = _Version(fetch_sources(package, to), tree)
    old = _Version(fetch_sources(package, frm), tree) if frm else None
    tree.packages = new.world.top_level()
    files = [path for path in tree.files if not _excluded(tree.relative(path), config.exclude)]
    roots = new.world.roots | (old.world.roots if old else set())
    config = config.about(new.world.is_ours, package)
    copies = {path for path in files if tree.vendored(path)}
    modules = _users(tree, [path for path in files if path not in copies], roots)
    declared = {item.cls.replace(":", ".") for item in config.worker_extensions}
    named = [item for item in named_extensions(new.world, modules) if item.cls not in declared]
    config = config.model_copy(update={"worker_extensions": (*config.worker_extensions, *named)})
    new.walk(modules)
    if old:
        old.walk(modules)
    broken = [
        Finding(
            "syntax", tree.relative(path), _line(why), tree.relative(path), f"does not parse: {why}", "correct the file"
        )
        for path, why in sorted(tree.broken.items())
        if path in set(files)
    ]
    now = [*broken, *new.findings(old, config, where)]
    before = [*broken, *old.findings(None, config, where)] if old else []
    past = {item.key for item in before if item.kind != "config"}  # a wrong declaration is wrong today
    if old:
        now += change_findings((new.world, new.seen), (old.world, old.seen))
        now += class_findings((new.world, new.seen), (old.world, old.seen))
    for mirror in config.mirrors:
        base = (
            _Version(fetch_sources(package, mirror.as_of), tree).world if mirror.as_of else old.world if old else None
        )
        now += mirrors.drift(new.world, base, mirror, where)
    for dotted in config.watch:
        now += watched(new.world, old.world if old else None, dotted, where)
    own = {module.path for module in modules if new.world.same(module)}
    # A file that is the package's own, byte for byte, is not for the downstream to mend: it is said aside.
    now = [
        replace(item, note=True, what=f"in the package's own file: {item.what}") if item.path in own else item
        for item in now
    ]
    left, waived = accept(_ordered(now), config.accepted, where, datetime.datetime.now(tz=datetime.UTC).date())
    counts = new.seen.counts
    skipped = Counter({name: number for name, number in counts.items() if name not in _CHECKED})
    if not old:
        skipped["mirrors, which need --from, `as_of` or `exact`"] = sum(
            not (m.as_of or m.exact) for m in config.mirrors
        )
    skipped["files too large"] = len(tree.large)
    skipped["files of copies of the package deeper in the tree"] = len(copies)
    skipped["files of the package that do not parse"] = len(new.world.unparsed)
    return SourceReport(
        package=package,
        to=to,
        frm=frm,
        root=tree.root,
        new=tuple(item for item in left if item.key not in past and not item.note),
        known=tuple(item for item in left if item.key in past and not item.note),
        notes=tuple(item for item in left if item.note and item.key not in past),
        accepted=tuple(waived),
        files=len(files),
        using=len(modules),
        checked=Counter({name: counts[name] for name in _CHECKED if counts[name]}),
        skipped=+skipped,
        seconds=time.monotonic() - started,
        fetched=new.sources.fetched + (old.sources.fetched if old else 0),
    )


def _users(tree: Tree, files: list[Path], roots: set[str]) -> list[Module]:
    """Return the modules of the files that speak of the package, or belong to it: only those are parsed."""
    word = re.compile(rb"\b(?:" + b"|".join(re.escape(name.encode()) for name in sorted(roots)) + rb")\b")
    found = []
    for path in files:
        text = tree.text(path)
        if word.search(text) or (b"import" in text and tree.dotted(path).split(".", 1)[0] in roots):
            module = tree.module(path)
            if module is not None:
                found.append(module)
    return found


def _excluded(path: str, exclude: tuple[str, ...]) -> bool:
    return any(path == item.rstrip("/") or path.startswith(f"{item.rstrip('/')}/") for item in exclude)


def _line(why: str) -> int:
    match = re.match(r"line (\d+)", why)
    return int(match[1]) if match else 0


def _ordered(findings: list[Finding]) -> list[Finding]:
    unique = {item.key: item for item in reversed(findings)}
    return sorted(unique.values(), key=lambda item: (item.path, item.line, KINDS.index(item.kind), item.symbol))
