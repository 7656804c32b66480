"""Imports of the package: whether they resolve, and where a lost name went."""

from __future__ import annotations

import difflib

from lockstep.source.findings import Finding
from lockstep.source.world import World


def failed_import(world: World, module: str, name: str) -> bool:
    """Whether `import module` (no name) or `from module import name` would raise for want of the thing."""
    if not world.exists(module):
        return True
    return bool(name) and not world.member(module, name) and not _typed(world, module, name)


def _typed(world: World, module: str, name: str) -> bool:
    loaded = world.module(module)
    return loaded is not None and world.typing_only(loaded, name)


def import_finding(world: World, path: str, line: int, module: str, name: str) -> Finding:
    """Return the finding for an import that fails, with the place where the thing is now, if it is anywhere."""
    symbol = f"{module}.{name}" if name else module
    if name and world.exists(module):
        if _typed(world, module, name):
            what = f"{module} has `{name}` for type checkers only: importing it fails at run time"
        else:
            what = f"{module} has no `{name}`"
    else:
        gone = module
        while "." in gone and not world.exists(gone.rpartition(".")[0]):
            gone = gone.rpartition(".")[0]
        what = f"there is no module {gone}"
    return Finding("import", path, line, symbol, what, _whereto(world, module, name))


def module_finding(world: World, path: str, line: int, dotted: str, how: str) -> Finding:
    """Return the finding for a dotted name in a string (`patch("pkg.mod.name")`) that stands for nothing."""
    module, _, name = dotted.rpartition(".")
    verb = {"import_module": "imports", "setattr": "patches", "patch": "patches"}.get(how, "names")
    what = f"the string {verb} `{dotted}`, which does not exist"
    return Finding("import", path, line, dotted, what, _whereto(world, module, name))


def _whereto(world: World, module: str, name: str) -> str:
    if name:
        places = world.moved(module, name)
        if len(places) == 1:
            return f"moved: from {places[0]} import {name}"
        if places:
            more = f" (and {len(places) - 3} more)" if len(places) > 3 else ""
            return f"the name is defined in {', '.join(places[:3])}{more}"
        submodule = [item for item in world.modules() if item.endswith(f".{name}")]
        if len(submodule) == 1:
            return f"moved: import {submodule[0]}"
        return _near(world, module, name)
    last = module.rpartition(".")[2]
    words = set(module.split("."))
    same = sorted(
        (item for item in world.modules() if item.rpartition(".")[2] == last),
        key=lambda item: (-len(words & set(item.split("."))), item),
    )
    return f"modules of that name: {', '.join(same[:3])}" if same else "removed: no module has that name now"


def _near(world: World, module: str, name: str) -> str:
    loaded = world.module(module)
    known = [item for item in loaded.names.table if not item.startswith("__")] if loaded is not None else []
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.8)
    if near:
        return f"removed; {module} has {' and '.join(f'`{item}`' for item in near)}"
    return "removed: nothing in the package defines that name now"
