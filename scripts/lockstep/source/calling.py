"""What a call must give, as data: parameters, signatures, and whether a call fits one."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from lockstep.source.model import Module
from lockstep.source.values import ClassInfo


@dataclass(frozen=True)
class Parameter:
    """One parameter. kind: positional (only), either, keyword (only). default is its expression; module reads it."""

    name: str
    kind: str
    required: bool
    default: ast.expr | None
    module: Module
    aliases: tuple[str, ...] = ()
    annotation: ast.expr | None = None


@dataclass(frozen=True)
class Signature:
    """Parameters in order, self left out. model: dataclass, pydantic or msgspec for a class built from its fields.

    extra: what a pydantic model does with a keyword that is no field: allow, ignore, forbid or unknown.
    loose: a validator sees the arguments first, so that neither missing nor unknown ones can be judged.
    accepts: keywords that the body takes out of its `**kwargs`; forwards: the signature that gets the rest of them.
    """

    parameters: tuple[Parameter, ...]
    var_positional: bool = False
    var_keyword: bool = False
    model: str = ""
    extra: str = ""
    loose: bool = False
    owner: ClassInfo | None = None
    accepts: frozenset[str] = frozenset()
    forwards: Signature | None = None
    forwards_to: str = ""

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter that a keyword of that name fills, also through `**kwargs` that are handed on."""
        for item in self.parameters:
            if item.kind != "positional" and (item.name == name or name in item.aliases):
                return item
        return self.forwards.parameter(name) if self.forwards is not None else None

    def names(self) -> list[str]:
        """Return every keyword that is taken, also through `**kwargs` that are handed on."""
        own = [item.name for item in self.parameters if item.kind != "positional"]
        return own + (self.forwards.names() if self.forwards is not None else [])

    def text(self) -> str:
        """Return the parameters as a person would write them, without annotations."""
        parts: list[str] = []
        star = False
        for item in self.parameters:
            if item.kind == "keyword" and not star:
                parts.append("*args" if self.var_positional else "*")
                star = True
            default = f"={ast.unparse(item.default)}" if item.default is not None else ""
            parts.append(f"{item.name}{default}" if len(default) < 30 else f"{item.name}=…")
        if self.var_positional and not star:
            parts.append("*args")
        if self.var_keyword:
            parts.append("**kwargs")
        return ", ".join(parts)


@dataclass(frozen=True)
class Misfit:
    """Why a call does not fit. kind: unknown (keyword), missing (argument), many (positional), twice, dropped."""

    kind: str
    name: str


def from_arguments(arguments: ast.arguments, module: Module, *, skip_first: bool) -> Signature | None:
    """Return the signature that a def or lambda spells out; None where self should be skipped and is not there."""
    plain = [(item, "positional") for item in arguments.posonlyargs] + [(item, "either") for item in arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    found = [
        Parameter(item.arg, kind, default is None, default, module, (), item.annotation)
        for (item, kind), default in zip(plain, defaults, strict=True)
    ]
    if skip_first:
        if not found and not arguments.vararg:
            return None
        found = found[1:]
    for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(Parameter(item.arg, "keyword", default is None, default, module, (), item.annotation))
    return Signature(tuple(found), arguments.vararg is not None, arguments.kwarg is not None)


def fit(signature: Signature, call: ast.Call) -> list[Misfit]:
    """Return why a call does not fit a signature; nothing where it fits or where `*` and `**` hide the answer."""
    found: list[Misfit] = []
    starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    spread = any(item.arg is None for item in call.keywords)
    places = [item for item in signature.parameters if item.kind != "keyword"]
    filled: set[str] = set()
    if not starred:
        if len(call.args) > len(places) and not signature.var_positional:
            found.append(Misfit("many", str(len(places))))
        filled = {item.name for item in places[: len(call.args)]}
    for item in call.keywords:
        if item.arg is None:
            continue
        parameter = signature.parameter(item.arg)
        if parameter is None:
            misfit = _unknown_keyword(signature, item.arg)
            if misfit:
                found.append(misfit)
        elif parameter.name in filled and parameter.kind == "either":
            found.append(Misfit("twice", item.arg))
        else:
            filled.add(parameter.name)
    if not starred and not spread and not signature.loose:
        found += [
            Misfit("missing", item.name) for item in signature.parameters if item.required and item.name not in filled
        ]
    return found


def _unknown_keyword(signature: Signature, name: str) -> Misfit | None:
    if signature.forwards is not None:
        inner = signature.forwards
        if name in signature.accepts or inner.var_keyword or inner.loose or inner.extra == "allow":
            return None
        return Misfit("unknown", name)
    if signature.var_keyword or signature.loose or signature.extra == "allow":
        return None
    return Misfit("dropped" if signature.extra == "ignore" else "unknown", name)
