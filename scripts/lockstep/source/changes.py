"""What two versions of the package do differently to the same line: attributes gone, defaults, fields, overrides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from lockstep.source.calling import Parameter, Signature, from_arguments
from lockstep.source.check import Call, Seen, State, Use
from lockstep.source.classes import decorators
from lockstep.source.findings import Finding
from lockstep.source.model import Function, Module
from lockstep.source.nodes import walk
from lockstep.source.values import ClassInfo, ClassV, DataV, FuncV, InstV, Member, ModuleV, SuperV, Value
from lockstep.source.world import World

# Classes of plain data that callers take apart or compare; their names end so across the packages that were looked at.
_ANSWER = re.compile(r"(Response|Output|Outputs|Result|Info|Usage|Choice|Chunk|Delta)$")


def describe(value: Value) -> str:
    """Return how a message names a module, a class or an instance."""
    if isinstance(value, ModuleV):
        return value.name
    if isinstance(value, ClassV | InstV | SuperV):
        return value.info.name
    return "it"


def attribute_findings(world: World, seen: Seen, before: Seen | None) -> Iterator[Finding]:
    """Yield the attributes that are gone. Where reading cannot be sure, `before` must have had them."""
    for key, use in seen.uses.items():
        if use.state is State.FOUND:
            continue
        had = before is not None and key in before.uses and before.uses[key].state is State.FOUND
        if had and use.state is State.OPEN and before is not None and not _as_open(use, before.uses[key]):
            continue
        if not had and (use.store or use.state is State.OPEN or not _certain(world, use)):
            continue
        yield _attribute(world, use, had=had)


def _as_open(now: Use, before: Use) -> bool:
    """Whether the thing has no more unread parts than before, so that what is gone from the read ones is gone."""
    return type(now.on) is type(before.on) and not isinstance(now.on, SuperV)


def _certain(world: World, use: Use) -> bool:
    if isinstance(use.on, ModuleV):
        return True
    if isinstance(use.on, ClassV | InstV) and use.on.info.module.owner == "package":
        return not world.has_member_anywhere(use.name)
    return False


def _attribute(world: World, use: Use, *, had: bool) -> Finding:
    owner = describe(use.on)
    line = getattr(use.node, "lineno", 0)
    symbol = f"{owner}.{use.name}"
    gone = "no longer has" if had else "has no"
    what = f"{owner} {gone} `{use.name}`"
    if use.store:
        what = f"sets `{symbol}`, which the package no longer has: nothing there will read it"
    fix = "removed: find what took its place"
    if isinstance(use.on, ModuleV):
        places = world.moved(use.on.name, use.name)
        if places:
            fix = f"moved: {places[0]}.{use.name}" if len(places) == 1 else f"defined in {', '.join(places[:3])}"
    return Finding("attribute", use.place.module.path, line, symbol, what, fix)


# Defaults and fields


def change_findings(to: tuple[World, Seen], frm: tuple[World, Seen]) -> Iterator[Finding]:
    """Yield, for calls that both versions take, the defaults that changed and the fields that came, if not given."""
    told: set[str] = set()
    for node, call in to[1].calls.items():
        before = frm[1].calls.get(node)
        if before is None or len(call.signatures) != 1 or len(before.signatures) != 1:
            continue
        new, old = call.signatures[0], before.signatures[0]
        given = _given(call, new)
        olds = {item.name: item for item in _parameters(old)}
        gained: list[Parameter] = []
        for parameter in _parameters(new):
            if parameter.name in given or parameter.required:
                continue
            had = olds.get(parameter.name)
            if had is None:
                gained.append(parameter)
            elif had.default is not None and parameter.default is not None:
                was, now = default_of(frm[0], had), default_of(to[0], parameter)
                if was != now:
                    yield _default(call, parameter, was, now)
        if gained and (new.model or new.forwards):
            yield from _gained(to[0], call, new, gained, told)


def _parameters(signature: Signature) -> Iterator[Parameter]:
    yield from signature.parameters
    if signature.forwards is not None:
        yield from _parameters(signature.forwards)


def _given(call: Call, signature: Signature) -> set[str]:
    places = [item.name for item in signature.parameters if item.kind != "keyword"]
    given = set(places[: len(call.node.args)])
    for item in call.node.keywords:
        if item.arg is not None:
            parameter = signature.parameter(item.arg)
            given |= {item.arg} | ({parameter.name} if parameter else set())
        else:
            # `**settings`: what the file mentions may be among them.
            given |= set(call.place.module.strings) | _keywords(call.place.module)
    return given


def _keywords(module: Module) -> set[str]:
    return {item.arg for item in walk(module.tree) if isinstance(item, ast.keyword) and item.arg}


def default_of(world: World, parameter: Parameter) -> str:
    """Return a default as comparable text: names of the package's constants and fields replaced by their values."""
    return _plain(world, parameter.module, parameter.default, 0) if parameter.default is not None else ""


def _plain(world: World, module: Module, expr: ast.expr, depth: int) -> str:
    if isinstance(expr, ast.Call) and expr.keywords:
        given = {item.arg: item.value for item in expr.keywords}
        inner = given.get("default") or given.get("default_factory")
        if inner is not None:
            return _plain(world, module, inner, depth)
    if isinstance(expr, ast.Name | ast.Attribute) and depth < 4:
        for value in world.expression(module, expr):
            if isinstance(value, DataV) and value.node is not None and value.node is not expr:
                return _plain(world, value.module, value.node, depth + 1)
    return ast.unparse(expr)


def _default(call: Call, parameter: Parameter, was: str, now: str) -> Finding:
    name = ast.unparse(call.node.func)
    return Finding(
        "default",
        call.place.module.path,
        call.node.lineno,
        f"{name}({parameter.name})",
        f"the default of `{parameter.name}` of {name}() changed from {short(was)} to {short(now)}, and it is not given",
        f"pass `{parameter.name}={short(was)}` to keep the behaviour, or the new value to accept it",
        # None stands for "the package decides": what it decides is not in the signature, so it may be the same.
        note="None" in (was, now),
    )


def short(text: str) -> str:
    """Return a default as a message shows it."""
    return text if len(text) <= 60 else f"{text[:57]}…"


def _gained(
    world: World, call: Call, signature: Signature, gained: list[Parameter], told: set[str]
) -> Iterator[Finding]:
    """Say what a class or function gained: switches that are on, fields of answers; the rest once, as a note."""
    name = ast.unparse(call.node.func)
    path, line = call.place.module.path, call.node.lineno
    answer = signature.model == "pydantic" or (signature.owner is not None and _ANSWER.search(signature.owner.name))
    quiet: list[str] = []
    for parameter in gained:
        if default_of(world, parameter) == "True":
            yield Finding(
                "default",
                path,
                line,
                f"{name}({parameter.name})",
                f"{name}() gained `{parameter.name}`, which is on unless it is given",
                f"pass `{parameter.name}=False` to keep the behaviour, or True to accept it",
            )
        else:
            quiet.append(parameter.name)
    key = describe_call(call)
    if not quiet or (not answer and key in told):
        return
    told.add(key)
    listed = ", ".join(f"`{item}`" for item in quiet)
    many = len(quiet) > 1
    yield Finding(
        "field",
        path,
        line,
        f"{name}({', '.join(quiet)})",
        f"{name}() gained the field{'s' if many else ''} {listed}, which the call leaves at "
        f"{'their defaults' if many else 'its default'}",
        "set what the caller has, and let whatever reads or compares the result know the field"
        if answer
        else "nothing, unless one of them is wanted: none is switched on by default",
        # A setting that is off by default changes nothing; an answer with one more field is another answer.
        note=not answer,
    )


def describe_call(call: Call) -> str:
    """Return the dotted name of what a call calls."""
    value = call.value
    if isinstance(value, ClassV | InstV | SuperV):
        return value.info.dotted
    return value.dotted if isinstance(value, FuncV) else "?"


# Classes of the downstream tree that stand on the package's


def class_findings(to: tuple[World, Seen], frm: tuple[World, Seen]) -> Iterator[Finding]:
    """Yield what the bases' change does to downstream subclasses: overrides that no longer fit, names that collide."""
    for node, info in to[1].classes.items():
        old = frm[1].classes.get(node)
        if old is None:
            continue
        for name, members in to[0].classes.own(info).items():
            member = members[-1]
            if name.startswith("__"):
                continue
            now, was = _base_member(to[0], info, name), _base_member(frm[0], old, name)
            if now is not None and was is None and member.kind in {"method", "property", "value"}:
                if frm[0].classes.find(old, name, skip_first=True) or _unread(frm[0], old):
                    continue
                if not _is_abstract(now.node):  # else it is what the base asks for
                    yield _collides(info, member, now)
            elif now is None and was is not None and member.kind == "method":
                if to[0].classes.find(info, name, skip_first=True) or _unread(to[0], info):
                    continue
                yield _orphan(info, member, was)
            elif now is not None and was is not None:
                yield from _override(info, member, now, was)
        yield from _abstract(to[0], info, frm[0], old)


def _unread(world: World, info: ClassInfo) -> bool:
    return "?" in world.classes.mro(info)[1]


def _base_member(world: World, info: ClassInfo, name: str) -> Member | None:
    for member in reversed(world.classes.find(info, name, skip_first=True)):
        if member.owner.module.owner == "package" and member.kind != "note":
            return member
    return None


def _collides(info: ClassInfo, member: Member, now: Member) -> Finding:
    ours, theirs = (
        _signature(item.node, item.owner.module) if isinstance(item.node, Function) else None for item in (member, now)
    )
    return Finding(
        "collision",
        info.module.path,
        getattr(member.node, "lineno", 0),
        f"{info.name}.{member.name}",
        f"`{member.name}` is a name that the base {now.owner.name} now has too: this one replaces it",
        f"rename it, unless it is meant to replace {now.owner.dotted}.{member.name}",
        # One that takes what the base's takes was probably written to replace it.
        note=ours is not None and theirs is not None and not _lacking(ours, theirs) and not _demands(ours, theirs),
    )


def _orphan(info: ClassInfo, member: Member, was: Member) -> Finding:
    return Finding(
        "override",
        info.module.path,
        getattr(member.node, "lineno", 0),
        f"{info.name}.{member.name}",
        f"overrides {was.owner.name}.{member.name}, which the package no longer has: it will not be called",
        "move its work to what took the method's place",
    )


def _override(info: ClassInfo, member: Member, now: Member, was: Member) -> Iterator[Finding]:
    functions = [item.node for item in (member, now, was)]
    if not all(isinstance(item, Function) for item in functions):
        return
    ours, new, old = (_signature(item, info.module) for item in functions if isinstance(item, Function))
    if ours is None or new is None or old is None:
        return
    lacking = _lacking(ours, new) - _lacking(ours, old)
    if lacking:
        listed = ", ".join(f"`{item}`" for item in sorted(lacking))
        yield Finding(
            "override",
            info.module.path,
            getattr(member.node, "lineno", 0),
            f"{info.name}.{member.name}",
            f"{now.owner.name}.{member.name}() now takes {listed}, and this override does not",
            f"the package's takes ({new.text()[:160]})",
        )


def _signature(node: Function, module: Module) -> Signature | None:
    names = set(decorators(node))
    if names - {"staticmethod", "classmethod", "abstractmethod", "override", "no_grad", "inference_mode", "final"}:
        return None
    return from_arguments(node.args, module, skip_first="staticmethod" not in names)


def _lacking(ours: Signature, theirs: Signature) -> set[str]:
    have = {item.name for item in ours.parameters}
    places = sum(item.kind != "keyword" for item in ours.parameters)
    lacking = set()
    for number, item in enumerate(theirs.parameters):
        if item.name in have or (item.kind == "keyword" and ours.var_keyword):
            continue
        if item.kind != "keyword" and (ours.var_positional or (number < places and item.required)):
            continue
        if not ours.var_keyword or (item.kind == "positional" and not ours.var_positional):
            lacking.add(item.name)
    return lacking


def _demands(ours: Signature, theirs: Signature) -> bool:
    places = sum(item.kind != "keyword" for item in theirs.parameters)
    have = {item.name for item in theirs.parameters}
    needed = [item for number, item in enumerate(ours.parameters) if item.required and number >= places]
    return any(item.name not in have for item in needed)


def abstract_names(world: World, info: ClassInfo) -> set[str]:
    """Return the abstract methods of the package that a class leaves open."""
    found = set()
    for name, member in world.classes.all_names(info).items():
        ours = member.owner.module.owner == "package" and isinstance(member.node, Function)
        if ours and _is_abstract(member.node):
            found.add(name)
    return found


def _is_abstract(node: ast.AST) -> bool:
    return isinstance(node, Function) and bool({"abstractmethod", "abstractproperty"} & set(decorators(node)))


def _abstract(to: World, info: ClassInfo, frm: World, old: ClassInfo) -> Iterator[Finding]:
    new = abstract_names(to, info) - abstract_names(frm, old)
    own = [member for members in to.classes.own(info).values() for member in members]
    if new and not any(_is_abstract(member.node) for member in own):
        listed = ", ".join(f"`{item}`" for item in sorted(new))
        yield Finding(
            "abstract",
            info.module.path,
            info.node.lineno,
            f"{info.name}({', '.join(sorted(new))})",
            f"{info.name} lacks {listed}, which the package now demands: it cannot be instantiated",
            "implement what is missing",
        )
