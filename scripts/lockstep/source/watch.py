"""Defaults that matter although no downstream call names them: the `watch` list of the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.source.calling import Parameter
from lockstep.source.changes import default_of, short
from lockstep.source.findings import Finding
from lockstep.source.signature import Signatures
from lockstep.source.values import ClassV, FuncV
from lockstep.source.world import World


def watched(to: World, frm: World | None, dotted: str, where: str) -> Iterator[Finding]:
    """Yield what became of the defaults of a function, a class, or one field of a class (`pkg.mod:Class.field`)."""
    now, field = _parameters(to, dotted)
    was, _ = _parameters(frm, dotted) if frm is not None else (None, "")
    if now is None and was is None:
        yield Finding("config", where, 0, dotted, f"there is no {dotted} to watch", "correct the configuration")
        return
    if frm is None:
        return
    for name in sorted(set(now or {}) | set(was or {})):
        if field and name != field:
            continue
        new, old = (now or {}).get(name), (was or {}).get(name)
        text = _text(to, new), _text(frm, old)
        if text[0] == text[1]:
            continue
        thing = dotted.removesuffix(f".{name}")
        if old is None:
            what = f"{thing} gained `{name}`, by default {short(text[0])}"
        elif new is None:
            what = f"{thing} no longer has `{name}`"
        else:
            what = f"the default of `{name}` of {thing} changed from {short(text[1])} to {short(text[0])}"
        yield Finding("default", where, 0, f"{dotted}({name})", what, "decide which value is meant, and give it")


def _text(world: World, parameter: Parameter | None) -> str:
    if parameter is None:
        return "(not there)"
    return default_of(world, parameter) if parameter.default is not None else "(required)"


def _parameters(world: World, dotted: str) -> tuple[dict[str, Parameter] | None, str]:
    signatures = Signatures(world)
    owner, _, last = dotted.rpartition(".")
    for name, field in ((dotted, ""), (owner, last)):
        for value in world.symbol(name) if name else ():
            if isinstance(value, FuncV | ClassV):
                found = signatures.of(value)
                if found:
                    table = {item.name: item for signature in found for item in signature.parameters}
                    if not field or field in table:
                        return table, field
    return None, ""
