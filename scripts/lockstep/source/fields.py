"""The fields of dataclasses, pydantic models and msgspec structs, as their class bodies spell them out."""

from __future__ import annotations

import ast

from lockstep.source.calling import Parameter
from lockstep.source.classes import last_name
from lockstep.source.model import Function
from lockstep.source.values import ClassInfo

_FIELD_CALLS = {"field", "Field", "get_field", "PrivateAttr"}


def own_fields(info: ClassInfo, model: str, all_keyword: bool) -> list[Parameter]:
    """Return the constructor's parameters that a class body itself declares, in order.

    model: dataclass, pydantic or msgspec; all_keyword: whether the class makes every field keyword-only.
    """
    found: list[Parameter] = []
    keyword = all_keyword
    for node in info.node.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name, annotation = node.target.id, node.annotation
        kind = last_name(annotation.value if isinstance(annotation, ast.Subscript) else annotation)
        if kind == "KW_ONLY":
            keyword = True
            continue
        if kind == "ClassVar" or (isinstance(annotation, ast.Constant) and "ClassVar" in str(annotation.value)):
            continue
        if model == "pydantic" and name.startswith("_"):
            continue
        default, aliases, own_keyword, init = _field(node.value)
        if not init:
            continue
        place = "keyword" if keyword or own_keyword else "either"
        required = default is None
        found.append(Parameter(name, place, required, default, info.module, aliases, annotation))
    return found


def _field(value: ast.expr | None) -> tuple[ast.expr | None, tuple[str, ...], bool, bool]:
    """Return a field's default, its aliases, whether it is keyword-only, and whether the constructor takes it."""
    if not isinstance(value, ast.Call) or last_name(value) not in _FIELD_CALLS:
        return value, (), False, True
    given = {item.arg: item.value for item in value.keywords}
    if last_name(value) == "PrivateAttr":
        return value, (), False, False
    default: ast.expr | None = given.get("default") or given.get("default_factory")
    if default is None and last_name(value) == "get_field":
        default = value
    if default is None and value.args and last_name(value) == "Field":
        default = value.args[0]
    if isinstance(default, ast.Constant) and default.value is ...:
        default = None
    if None in given:
        default = default or value  # `**more`: may hold a default
    aliases = tuple(text for key in ("alias", "validation_alias") if key in given and (text := text_of(given[key])))
    init = given.get("init")
    own_keyword = "kw_only" in given and is_true(given["kw_only"])
    return default, aliases, own_keyword, not (isinstance(init, ast.Constant) and init.value is False)


def extra_of(info: ClassInfo) -> str:
    """Return what a pydantic class says of keywords that are no fields: allow, ignore, forbid, unknown, or nothing."""
    for item in info.node.keywords:
        if item.arg == "extra":
            return text_of(item.value) or "unknown"
    for node in info.node.body:
        if (isinstance(node, ast.Assign) and any(is_name(target, "model_config") for target in node.targets)) or (
            isinstance(node, ast.AnnAssign) and is_name(node.target, "model_config") and node.value is not None
        ):
            value = node.value
        elif isinstance(node, ast.ClassDef) and node.name == "Config":
            return "unknown"
        else:
            continue
        if isinstance(value, ast.Call):
            given = {item.arg: item.value for item in value.keywords}
        elif isinstance(value, ast.Dict):
            given = {text_of(key) if key else None: item for key, item in zip(value.keys, value.values, strict=True)}
        else:
            return "unknown"
        if "alias_generator" in given or None in given:
            return "unknown"
        return (text_of(given["extra"]) or "unknown") if "extra" in given else ""
    return ""


def validates_first(info: ClassInfo) -> bool:
    """Whether a pydantic class has a validator that sees the arguments before the fields do."""
    for node in info.node.body:
        if isinstance(node, Function):
            for item in node.decorator_list:
                if last_name(item) == "root_validator":
                    return True
                if last_name(item) == "model_validator" and isinstance(item, ast.Call):
                    mode = next((text_of(k.value) for k in item.keywords if k.arg == "mode"), "")
                    if mode != "after":
                        return True
    return False


def is_true(expr: ast.expr) -> bool:
    """Whether an expression is the constant True."""
    return isinstance(expr, ast.Constant) and expr.value is True


def is_name(expr: ast.expr, name: str) -> bool:
    """Whether an expression is that name alone."""
    return isinstance(expr, ast.Name) and expr.id == name


def text_of(expr: ast.expr) -> str | None:
    """Return the text of a string constant, or None for anything else."""
    return expr.value if isinstance(expr, ast.Constant) and isinstance(expr.value, str) else None
