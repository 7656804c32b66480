"""Objects that stand for one of the package's interfaces: what the package asks of the interface, and they lack."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from lockstep.source import guards
from lockstep.source.classes import OBJECT, decorators, last_name
from lockstep.source.config import Proxy
from lockstep.source.findings import Finding
from lockstep.source.infer import Infer
from lockstep.source.model import Function, Module
from lockstep.source.values import ClassInfo, InstV, Member
from lockstep.source.walk import Place, Walk
from lockstep.source.world import World


@dataclass
class _Asked:
    """The visitor that notes every member which a piece of the package asks of an interface."""

    infer: Infer
    wanted: ClassInfo
    holders: set[str]
    makers: set[str]
    places: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    def on_import(self, node: ast.Import | ast.ImportFrom, place: Place) -> None:
        pass

    def on_call(self, node: ast.Call, place: Place) -> None:
        pass

    def on_class(self, info: ClassInfo, place: Place) -> None:
        pass

    def on_attribute(self, node: ast.Attribute, place: Place) -> None:
        if isinstance(node.ctx, ast.Store) or node.attr in OBJECT:
            return
        if guards.ATTRIBUTE in place.guards or not self._may_hold(node.value, place):
            return
        if node.attr in guards.probes(place.module).names:
            return
        values = self.infer.of(place.scope, node.value)
        if len(values) != 1 or not isinstance(values[0], InstV) or values[0].info is not self.wanted:
            return
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return  # the interface's own methods: a proxy brings its own
        self.places.setdefault(node.attr, []).append((place.module.path, node.lineno))

    def _may_hold(self, expr: ast.expr, place: Place) -> bool:
        """A quick look: whether an expression can be of the interface at all."""
        if isinstance(expr, ast.Attribute):
            return expr.attr in self.holders
        if isinstance(expr, ast.Name):
            if expr.id in self.holders:
                return True
            bindings = place.scope.names.table.get(expr.id, [])
            return any(isinstance(b.value, ast.Call) and last_name(b.value) in self.makers for b in bindings)
        return isinstance(expr, ast.Call) and last_name(expr) in self.makers


def asked_of(world: World, infer: Infer, interface: ClassInfo) -> dict[str, list[tuple[str, int]]]:
    """Return each member that the package asks of things declared as the interface, with the places that ask.

    Read are the modules that name the interface and those that use an attribute which holds one
    (`self.engine_client`), so that subclasses of the holder in other files are seen.
    """
    name = interface.node.name
    word = re.compile(rb"\b%b\b" % re.escape(name.encode()))
    naming = [item for item in world.modules() if word.search(world.text(item))]
    holders: set[str] = set()
    makers: set[str] = set()
    thing = rb"[\"']?(?:[\w.]+\.)?%b\b" % re.escape(name.encode())
    declared = re.compile(rb"\b(\w+)[ ]*:[ ]*" + thing)
    returned = re.compile(rb"\bdef[ ]+(\w+)\([^)]*\)\s*->[ ]*" + thing)
    for item in naming:
        text = world.text(item)
        holders |= {match[1].decode() for match in declared.finditer(text)}
        makers |= {match[1].decode() for match in returned.finditer(text)}
    asked = _Asked(infer, interface, holders, makers)
    wanted = [b"." + holder.encode() + b"." for holder in sorted(holders)]
    for item in world.modules():
        text = world.text(item)
        if item in naming or any(part in text for part in wanted):
            module: Module | None = world.module(item)
            if module is not None:
                Walk(infer, asked).module(module, probe=False)
    return asked.places


def _optional(member: Member) -> bool:
    """Whether the interface itself only raises NotImplementedError there: who stands for it may lack it as well."""
    node = member.node
    if not isinstance(node, Function) or "abstractmethod" in decorators(node):
        return False
    body = [item for item in node.body if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))]
    raised = body[0].exc if len(body) == 1 and isinstance(body[0], ast.Raise) else None
    return raised is not None and last_name(raised) == "NotImplementedError"


def lacking(world: World, infer: Infer, proxy: Proxy, where: str) -> list[Finding]:
    """Return a finding for each member that the package asks of the interface and the proxy does not have.

    One that the interface itself leaves unimplemented is a note.
    """
    info = world.class_of(proxy.cls)
    interface = world.class_of(proxy.stands_for)
    for name, found in ((proxy.cls, info), (proxy.stands_for, interface)):
        if found is None:
            return [Finding("config", where, 0, name, f"there is no class {name}", "correct the configuration")]
    if info is None or interface is None or world.classes.is_open(info):
        return []
    have = world.classes.all_names(info)
    _, outside = world.classes.mro(info)
    if outside:
        return []
    findings = []
    for name, places in sorted(asked_of(world, infer, interface).items()):
        member = have.get(name)
        if member is not None and (member.kind != "note" or member.owner.module.owner == "tree"):
            continue
        first = ", ".join(f"{path}:{line}" for path, line in places[:3])
        more = f" and {len(places) - 3} more places" if len(places) > 3 else ""
        findings.append(
            Finding(
                "proxy",
                info.module.path,
                info.node.lineno,
                f"{info.name}.{name}",
                f"{info.name} stands for {interface.name} and lacks `{name}`, which is asked for at {first}{more}",
                f"add `{name}`" + (f" as {interface.dotted} has it" if name in world.classes.own(interface) else ""),
                note=any(_optional(item) for item in world.classes.find(interface, name)),
            )
        )
    return findings
