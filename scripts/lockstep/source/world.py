"""Names resolved across files: the package at one version, together with the downstream tree that uses it."""

from __future__ import annotations

import ast
import re
from functools import cached_property

from lockstep.source.classes import Classes, last_name
from lockstep.source.fetch import Sources
from lockstep.source.model import Binding, Function, Module, parse
from lockstep.source.nodes import walk
from lockstep.source.tree import Tree
from lockstep.source.values import UNKNOWN, ClassInfo, ClassV, DataV, External, FuncV, InstV, ModuleV, SuperV, Value

_DEFINED = re.compile(rb"^(?:async[ ]+def|def|class)[ ]+(\w+)|^(\w+)[ ]*(?::[^=\n]*)?=(?!=)", re.MULTILINE)
_COMPILED = re.compile(r"(\.cpython-[\w-]+|\.abi3)?\.(so|pyd)$")
# Calls in a module's `__getattr__` that get the name only to speak of it.
_TELLING = {"AttributeError", "ImportError", "isinstance", "warn", "warn_once", "warning", "debug", "info"}
# Namespace packages nest no deeper than this in what was looked at (`google.cloud.storage`).
_NAMESPACES = 4
# Names that every module has (the language reference, "Module objects").
_MODULE = {
    "__name__",
    "__file__",
    "__path__",
    "__doc__",
    "__dict__",
    "__package__",
    "__spec__",
    "__loader__",
    "__all__",
}


class World:
    """The package's sources at one version, and the downstream tree. Everything is parsed only when it is reached."""

    def __init__(self, sources: Sources, tree: Tree) -> None:
        self.sources = sources
        self.tree = tree
        self.classes = Classes(self)
        self.unparsed: set[str] = set()
        self._files: dict[str, str] = {}
        self._packages: set[str] = set()
        self._compiled: set[str] = set()
        for member in sources.names():
            self._list(member)
        self.claims = self._claims()
        self.roots = {name.split(".", 1)[0] for name in self.claims}
        self._deepest = max((name.count(".") + 1 for name in self.claims), default=1)
        self._modules: dict[str, Module | None] = {}
        self._resolved: dict[tuple[Module, str], tuple[Value, ...]] = {}
        self._open: set[tuple[Module, str]] = set()
        self._circle = False
        self._members: dict[str, bool] = {}
        self._texts: dict[str, bytes] = {}

    def _list(self, member: str) -> None:
        if member.endswith(".py") or member.endswith(".pyi"):
            stem, stub = member.rsplit(".", 1)[0], member.endswith(".pyi")
        else:
            stem, stub = _COMPILED.sub("", member), False
            self._compiled.add(stem.replace("/", "."))
        parts = stem.split("/")
        if not all(part.isidentifier() for part in parts):
            return
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        for depth in range(1, len(parts)):
            self._packages.add(".".join(parts[:depth]))
        if member.endswith((".py", ".pyi")) and not (stub and name in self._files):
            self._files[name] = member

    def top_level(self) -> dict[str, set[str]]:
        """Return each import name of the package with the names directly in it."""
        found: dict[str, set[str]] = {root: {"__init__"} for root in self.roots}
        for name in (*self._files, *self._packages):
            parts = name.split(".")
            if len(parts) > 1 and parts[0] in found:
                found[parts[0]].add(parts[1])
        return found

    def exists(self, name: str) -> bool:
        """Whether the package has a module, a compiled module or a folder of that dotted name."""
        return name in self._files or name in self._packages or name in self._compiled

    def is_ours(self, name: str) -> bool:
        """Whether a dotted name belongs to the package that is checked."""
        first = name.split(".", 1)[0]
        if self._deepest == 1 or first not in self.roots:
            return first in self.roots
        parts = name.split(".")
        return any(".".join(parts[:depth]) in self.claims for depth in range(1, self._deepest + 1))

    def _claims(self) -> set[str]:
        """Return the names whose insides are this package's alone.

        A folder without `__init__.py` is a namespace that other packages share (`megatron`), so that only what this
        one has in it counts. A `tests` or `tools` that a wheel brings along is not the package where the tree has one.
        """
        names = {*self._files, *self._compiled}
        claims: set[str] = set()
        work = [(name.split(".", 1)[0], 1) for name in {name.split(".", 1)[0]: "" for name in names}]
        while work:
            name, depth = work.pop()
            if name in names or depth >= _NAMESPACES:
                claims.add(name)
                continue
            below = {".".join(item.split(".")[: depth + 1]) for item in names if item.startswith(f"{name}.")}
            work += [(item, depth + 1) for item in below]
        own = self.sources.package.replace("-", "_").lower()
        extra = {name for name in claims if "." not in name and name.lower() != own and self.tree.has_top(name)}
        return claims - extra if claims - extra else claims

    def module(self, name: str) -> Module | None:
        """Return the module of the package or of the tree; None where there is no readable source of that name."""
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def _load(self, name: str) -> Module | None:
        if not self.is_ours(name):
            if name.split(".", 1)[0] not in self.tree.tops:
                return None
            path = self.tree.find(name)
            return self.tree.module(path) if path else None
        member = self._files.get(name)
        if member is None:
            return None
        text = self.text(name)
        try:
            tree = parse(text)
        except (SyntaxError, ValueError, RecursionError):
            self.unparsed.add(member)
            return None
        is_package = member.rsplit("/", 1)[-1].startswith("__init__.")
        stub = member.endswith(".pyi")
        return Module(name, member, is_package, stub, "package", text, tree)

    # Names of modules

    def resolve(self, module: Module, name: str) -> tuple[Value, ...]:
        """Return what a top-level name of a module may stand for; nothing where the module does not have it.

        UNKNOWN among the results means that it may exist and that nothing can be said of it.
        """
        key = (module, name)
        if key in self._resolved:
            return self._resolved[key]
        if key in self._open:
            self._circle = True
            inner = f"{module.name}.{name}"
            return (ModuleV(inner),) if module.owner == "package" and self.exists(inner) else (UNKNOWN,)
        self._open.add(key)
        try:
            found = tuple(dict.fromkeys(self._resolve(module, name)))
        finally:
            self._open.discard(key)
        # What was found inside a circle of imports may be less than the whole: only the outermost answer is kept.
        if not self._open:
            self._circle = False
        if not self._circle:
            self._resolved[key] = found
        return found

    def _resolve(self, module: Module, name: str) -> list[Value]:
        found = self._at_run_time(module, name)
        if any(value != UNKNOWN for value in found) or not found:
            return found
        # Something may be there: what type checkers are told says which.
        typed = self.bound(module, [b for b in module.names.table.get(name, []) if b.typing_only])
        for star in module.names.stars:
            typed += self._star(star, name) if star.typing_only else []
        return [value for value in typed if value != UNKNOWN] or found

    def _at_run_time(self, module: Module, name: str) -> list[Value]:
        bindings = module.names.table.get(name, [])
        found = self.bound(module, [b for b in bindings if not b.typing_only and (b.kind != "note" or module.is_stub)])
        if found:
            return found
        for star in module.names.stars:
            if not star.typing_only:
                found += self._star(star, name)
        if any(value != UNKNOWN for value in found):
            return found
        inner = f"{module.name}.{name}"
        if module.owner == "package":
            if self.exists(inner):
                return [ModuleV(inner)]
        elif module.is_package and self.module(inner):
            return [ModuleV(inner)]
        if module.lazy is not None:
            found += self._lazy(module, module.lazy, name)
        if found:
            return found
        # Compiled modules have more than their stubs tell; and every module has a few names of its own.
        if name in _MODULE or module.dynamic or module.name in self._compiled:
            return [UNKNOWN]
        return []

    def typing_only(self, module: Module, name: str) -> bool:
        """Whether the module binds the name, but only under `if TYPE_CHECKING`."""
        return any(binding.typing_only for binding in module.names.table.get(name, []))

    def bound(self, module: Module, bindings: list[Binding], outer: str = "") -> list[Value]:
        """Return what a list of bindings of one name may stand for."""
        found: list[Value] = []
        defs = [b.node for b in bindings if isinstance(b.node, Function)]
        for binding in bindings:
            node = binding.node
            if isinstance(node, Function):
                if node is defs[-1]:
                    found.append(FuncV(node, module, all=tuple(defs)))
            elif isinstance(node, ast.ClassDef):
                found.append(ClassV(self.classes.info(module, node, outer)))
            elif binding.kind == "import":
                found += self.named(binding.module)
            elif binding.kind == "from":
                found += self.member(binding.module, binding.name)
            elif binding.kind in {"value", "note"}:
                alias: tuple[Value, ...] = ()
                if isinstance(binding.value, ast.Name | ast.Attribute) and binding.annotation is None:
                    alias = self.expression(module, binding.value)
                known = [value for value in alias if value != UNKNOWN]
                found += known or [DataV(module, binding.value, binding.annotation)]
            else:
                found.append(UNKNOWN)
        return found

    def named(self, name: str) -> list[Value]:
        """Return the module of a dotted name as a value; nothing where the package should have it and has not."""
        if self.is_ours(name):
            return [ModuleV(name)] if self.exists(name) else []
        return [ModuleV(name)] if self.module(name) is not None else [External(name)]

    def member(self, module: str, name: str) -> list[Value]:
        """Return what `from module import name` gives; nothing where the package should have it and has not."""
        if not self.is_ours(module) and self.module(module) is None:
            if self.is_ours(f"{module}.{name}"):
                return self.named(f"{module}.{name}")
            if f"{module}.{name}".split(".", 1)[0] in self.tree.tops and self.module(f"{module}.{name}"):
                return [ModuleV(f"{module}.{name}")]
            return [External(f"{module}.{name}")]
        if not self.exists(module) and self.is_ours(module):
            return []
        loaded = self.module(module)
        if loaded is None:
            # A folder without __init__, a compiled module without stub, or a file that does not parse.
            inner = f"{module}.{name}"
            if self.exists(inner):
                return [ModuleV(inner)]
            bare = module in self._packages and module not in self._files and module not in self._compiled
            return [] if bare else [UNKNOWN]
        return list(self.resolve(loaded, name))

    def _star(self, star: Binding, name: str) -> list[Value]:
        if name.startswith("__"):
            return []
        if not self.is_ours(star.module) and self.module(star.module) is None:
            return [] if star.module.split(".", 1)[0] in {"typing", "ctypes", "__future__"} else [UNKNOWN]
        if star.module in self._files and not self._may_have(star.module, name):
            return []
        loaded = self.module(star.module)
        if loaded is None:
            return [UNKNOWN] if self.exists(star.module) else []
        if loaded.exported is not None and name not in loaded.exported and not loaded.dynamic:
            return []
        if loaded.exported is None and name.startswith("_"):
            return []
        return list(self.resolve(loaded, name))

    def _may_have(self, module: str, name: str) -> bool:
        """A look at a file's text that saves parsing it: transformers takes names over with `*` from 2,000 modules."""
        text = self.text(module)
        more = (
            b"import *",
            b"globals()",
            b"__getattr__",
            b"sys.modules",
            b"exec(",
            b"__dict__",
            b"vars()",
            b"locals()",
        )
        return name.encode() in text or module in self._compiled or any(word in text for word in more)

    def _lazy(self, module: Module, getter: Function, name: str) -> list[Value]:
        """Return what a module's `__getattr__` may answer for a name: from its tables of names, or UNKNOWN."""
        if name.startswith("__"):
            return []
        if name in module.strings:
            return self._lazy_entry(module, name, module.strings[name])
        argument = getter.args.args[0].arg if getter.args.args else ""
        keys = {part for node in walk(getter) if isinstance(node, ast.Subscript) for part in walk(node.slice)}
        for node in walk(getter):
            if isinstance(node, ast.Call) and last_name(node.func) not in _TELLING:
                parts = [part for arg in node.args for part in walk(arg) if part not in keys]
                # A table's key is in `strings`; a function that gets the name otherwise may answer anything.
                if any(isinstance(part, ast.Name) and part.id == argument for part in parts):
                    return [UNKNOWN]
        raises = any(isinstance(node, ast.Raise) for node in walk(getter))
        return [] if raises else [UNKNOWN]

    def _lazy_entry(self, module: Module, name: str, value: ast.expr | None) -> list[Value]:
        text = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
        where, _, what = text.partition(":")
        if where.startswith("."):
            where = module.absolute(where.lstrip(".") or None, len(where) - len(where.lstrip(".")))
        if where and self.is_ours(where) and self.exists(where):
            return self.member(where, what or name) or [UNKNOWN]
        return [DataV(module, value)] if value is not None else [UNKNOWN]

    # Attributes and expressions

    def attribute(self, value: Value, name: str) -> tuple[Value, ...]:
        """Return what `value.name` may stand for; nothing where it is known not to be there."""
        if isinstance(value, ModuleV):
            return tuple(self.member(value.name, name))
        if isinstance(value, ClassV | InstV | SuperV):
            return self.classes.attribute(value, name)
        if isinstance(value, External):
            if self._deepest > 1 and self.is_ours(f"{value.name}.{name}"):
                return tuple(self.named(f"{value.name}.{name}"))
            return (External(f"{value.name}.{name}"),)
        return (UNKNOWN,)

    def expression(self, module: Module, expr: ast.expr | None) -> tuple[Value, ...]:
        """Return what a dotted name, as written at a module's top level, may stand for."""
        if isinstance(expr, ast.Name):
            return self.resolve_typed(module, expr.id) or (External(f"builtins.{expr.id}"),)
        if isinstance(expr, ast.Attribute):
            found: list[Value] = []
            for base in self.expression(module, expr.value):
                found += self.attribute(base, expr.attr)
            return tuple(found) or (UNKNOWN,)
        if isinstance(expr, ast.Subscript):
            return self.expression(module, expr.value)
        if isinstance(expr, ast.Constant) and isinstance(expr.value, str):
            try:
                return self.expression(module, ast.parse(expr.value, mode="eval").body)
            except SyntaxError:
                return (UNKNOWN,)
        return (UNKNOWN,)

    def resolve_typed(self, module: Module, name: str) -> tuple[Value, ...]:
        """As `resolve`, and where a name is there only for type checkers, what they are told."""
        found = self.resolve(module, name)
        if found and found != (UNKNOWN,):
            return found
        typed = self.bound(module, [b for b in module.names.table.get(name, []) if b.typing_only])
        return tuple(typed) or found

    @cached_property
    def _definitions(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self._files:
            for match in _DEFINED.finditer(self.text(name)):
                places = found.setdefault((match[1] or match[2]).decode(), [])
                if not places or places[-1] != name:
                    places.append(name)
        return found

    def defined_in(self, name: str) -> list[str]:
        """Return the modules of the package that define a top-level function, class or value of that name."""
        return self._definitions.get(name, [])

    def moved(self, module: str, name: str) -> list[str]:
        """Return the modules that define a name which `module` has lost, the likeliest first.

        A place that shares more of the old path's words is likelier; private modules come last.
        """
        words = set(module.split("."))

        def rank(place: str) -> tuple[int, bool, int, str]:
            parts = place.split(".")
            return (-len(words & set(parts)), any(part.startswith("_") for part in parts), len(parts), place)

        places = sorted((place for place in self.defined_in(name) if place != module), key=rank)
        if len(places) > 1 and rank(places[0])[0] == rank(places[1])[0]:
            return places
        return places[:1]

    def has_member_anywhere(self, name: str) -> bool:
        """Whether any class or code of the package or the tree gives some object an attribute of that name."""
        if name not in self._members:
            word = re.escape(name.encode())
            pattern = re.compile(
                rb"^[ \t]+(?:async[ ]+)?def[ ]+%b\b|^[ \t]+%b[ ]*[:=]|\.%b[ ]*(?::[^=\n]*)?=(?!=)|[\"']%b[\"']"
                % ((word,) * 4),
                re.MULTILINE,
            )
            texts = [self.text(item) for item in self._files] + [self.tree.text(path) for path in self.tree.files]
            self._members[name] = any(name.encode() in text and pattern.search(text) for text in texts)
        return self._members[name]

    def modules(self) -> list[str]:
        """Return the dotted names of every module of the package that has source."""
        return list(self._files)

    def text(self, name: str) -> bytes:
        """Return the source of a module of the package."""
        if name not in self._texts:
            self._texts[name] = self.sources.read(self._files[name])
        return self._texts[name]

    def same(self, module: Module) -> bool:
        """Whether a module of the tree is the package's module of that name, byte for byte."""
        return module.name in self._files and self.text(module.name) == module.text

    def symbol(self, dotted: str) -> tuple[Value, ...]:
        """Return what `pkg.mod.Class.method` or `pkg.mod:Class.method` stands for; nothing where it does not exist."""
        where, colon, _ = dotted.partition(":")
        parts = dotted.replace(":", ".").split(".")
        least = len(where.split(".")) if colon else 1
        for cut in range(len(parts), least - 1, -1):
            name = ".".join(parts[:cut])
            if (self.is_ours(name) and self.exists(name)) or (not self.is_ours(name) and self.module(name)):
                values: tuple[Value, ...] = (ModuleV(name),)
                for part in parts[cut:]:
                    values = tuple(v for value in values for v in self.attribute(value, part))
                return values
        return ()

    def class_of(self, dotted: str) -> ClassInfo | None:
        """Return the class of a dotted name, or None where there is no such class."""
        for value in self.symbol(dotted):
            if isinstance(value, ClassV):
                return value.info
        return None
