"""check-source: calls, attributes, defaults and fields, on a tiny package of two versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.source import SourceConfig, SourceReport, check_source

_BASE = (
    "from functools import wraps\nimport contextlib, dataclasses, enum, typing\n"
    "from pydantic import BaseModel, ConfigDict\n"
)
OLD = {
    "pkg/__init__.py": "",
    "pkg/api.py": _BASE
    + """
def kernel(config, experts, layer=None): ...
class Engine:
    names: list[str]
    limit = 3
    def __init__(self, model, *, seed=0): self.model = model
    def run(self, prompt, n=1) -> "Answer": ...
    def stop(self): ...
class Answer(BaseModel):
    text: str
    usage: int = 0
class Kind(enum.Enum):
    A = 1
    B = 2
@dataclasses.dataclass
class Settings:
    model: str
    depth: int = 2
    removed: int = 0
def default_seed(): ...
""",
}
NEW = {
    "pkg/__init__.py": "",
    "pkg/api.py": _BASE
    + """
def kernel(config, experts, *, backend): ...
class Engine:
    limit = 3
    def __init__(self, model, *, seed=1): self.model = model
    def run(self, prompt, n=1) -> "Answer": ...
class Answer(BaseModel):
    text: str
    usage: int = 0
    details: int | None = None
class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str
class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    text: str
class Kind(enum.Enum):
    A = 1
@dataclasses.dataclass
class Settings:
    model: str
    depth: int = 2
    normalize: bool = True
    quiet: bool = False
def unknown(f): return registry[f]
def timed(f):
    @wraps(f)
    def inner(*args, **kwargs): return f(*args, **kwargs)
    return inner
@unknown
def odd(a): ...
@timed
def even(a): ...
@contextlib.contextmanager
def opened(a): ...
def outer(a, **kwargs): return Settings(model=a, **kwargs)
def taking(**kwargs): return kwargs["anything"]
class Dynamic:
    def __getattr__(self, name): ...
@typing.overload
def many(a: int) -> int: ...
@typing.overload
def many(a: str, b: str) -> str: ...
def many(a, b=None): ...
def default_seed(): ...
""",
}


def check(tmp_path: Path, code: str, *, old: bool = True) -> SourceReport:
    """Check one file of code that starts with `from pkg.api import *` as written, against NEW."""
    for folder, files in (("old", OLD), ("new", NEW), ("tree", {"use.py": code})):
        for name, text in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    frm = str(tmp_path / "old") if old else None
    return check_source(tmp_path / "tree", "pkg", str(tmp_path / "new"), frm, SourceConfig())


def told(report: SourceReport) -> list[tuple[str, int, str]]:
    return [(item.kind, item.line, item.symbol) for item in report.new]


@pytest.mark.parametrize(
    ("code", "symbols"),
    [
        ("from pkg.api import kernel\nkernel(1, 2, layer=3)\n", ["kernel(backend)", "kernel(layer)"]),
        ("import pkg.api\npkg.api.kernel(1, 2, layer=3, backend=4)\n", ["pkg.api.kernel(layer)"]),
        ("from pkg import api as a\ndef f():\n    a.kernel(1, 2, 3, backend=4)\n", ["a.kernel(2)"]),
        ("from pkg.api import kernel\nkernel(1, 2, config=3, backend=4)\n"
        "", ["kernel(config)", "kernel(experts)"][:1]),
        ("from pkg.api import Engine\nEngine('m', speed=1, seed=0)\n", ["Engine(speed)"]),
        ("from pkg.api import even\neven(1, b=2)\n", ["even(b)"]),
        ("from pkg.api import opened\nwith opened(b=2, a=1):\n    pass\n", ["opened(b)"]),
        ("from pkg.api import outer\nouter(1, removed=3)\n", ["outer(removed)"]),
        ("from pkg.api import Closed\nClosed(text='', other=1)\n", ["Closed(other)"]),
        ("from pkg.api import Settings\nSettings(model='', removed=1, normalize=False)\n", ["Settings(removed)"]),
        ("import functools\nfrom pkg.api import even\nfunctools.partial(even, b=1)\n", ["even(b)"]),
        ("from pkg.api import Engine\nclass Mine(Engine):\n    def __init__(self):\n"
        "        super().__init__(1, depth=2, seed=0)\n",
         ["super().__init__(depth)"]),
    ],
)  # fmt: skip
def test_calls_that_do_not_fit(tmp_path: Path, code: str, symbols: list[str]) -> None:
    report = check(tmp_path, code, old=False)
    assert sorted(item.symbol for item in report.new if item.kind == "call") == symbols


@pytest.mark.parametrize(
    "code",
    [
        "from pkg.api import kernel\ndef f(*a, **k):\n    kernel(*a, **k)\n    kernel(1, backend=2, **k)\n",
        "from pkg.api import kernel\ntry:\n    kernel(1, 2, layer=3)\nexcept TypeError:\n    kernel(1, 2, backend=3)\n",
        "import inspect\nfrom pkg.api import kernel\nif 'layer' in inspect.signature(kernel).parameters:\n"
        "    kernel(1, 2, layer=3)\n",
        "from pkg.api import odd\nodd(1, 2, b=3)\n",
        "from pkg.api import outer, taking\nouter(1, depth=3, normalize=False)\ntaking(x=1)\n",
        "from pkg.api import Open\nOpen(text='', other=1)\n",
        "from pkg.api import many\nmany(1)\nmany('a', 'b')\n",
        "from pkg.api import kernel\nkernel = lambda *a, **k: None\nkernel(1, layer=2)\n",
        "from pkg.api import kernel\ndef f(kernel):\n    kernel(layer=1)\n",
        "from pkg.api import Engine\nclass Mine(Engine, Other):\n    def __init__(self):\n        self.run(1, n=2)\n",
        "from pkg.api import kernel\nkernel(1, 2, layer=3)  # type: ignore[call-arg]\n",
        "from pkg.api import Dynamic\nDynamic().anything(1)\n",
    ],
)
def test_calls_that_fit_or_cannot_be_judged(tmp_path: Path, code: str) -> None:
    assert told(check(tmp_path, code, old=False)) == []


def test_a_keyword_dropped_by_a_pydantic_model(tmp_path: Path) -> None:
    report = check(tmp_path, "from pkg.api import Answer\nAnswer(text='', other=1)\n", old=False)
    assert [item.what for item in report.new] == ["Answer() has no field `other` and ignores it"]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("from pkg.api import Engine\ndef f(engine: Engine):\n    return engine.names\n", 3),
        ("from pkg.api import Engine\nengine = Engine(1, seed=0)\ndef f():\n    engine.stop()\n", 4),
        ("from pkg.api import Engine\nclass Mine(Engine):\n    def f(self):\n        return self.stop()\n", 4),
        ("from pkg.api import Engine\nclass H:\n    def __init__(self, e: 'Engine | None'):\n        self.e = e\n"
         "    def f(self):\n        self.e.stop()\n", 6),
        ("from pkg.api import Kind\nKind.B\n", 2),
        ("from pkg import api\ndef mine(): ...\napi.Engine.stop = mine\n", 3),
        ("from unittest.mock import patch\nfrom pkg.api import Engine\npatch.object(Engine, 'stop')\n", 3),
        ("from pkg.api import Engine\ndef f(engine: Engine):\n    return getattr(engine, 'stop')\n", 3),
    ],
)  # fmt: skip
def test_attributes_that_are_gone(tmp_path: Path, code: str, line: int) -> None:
    report = check(tmp_path, code)
    assert [(item.kind, item.line) for item in report.new] == [("attribute", line)]


@pytest.mark.parametrize(
    "code",
    [
        "from pkg.api import Engine\ndef f(engine: Engine):\n    if hasattr(engine, 'stop'):\n        engine.stop()\n",
        "from pkg.api import Engine\ndef f(engine: Engine):\n    getattr(engine, 'stop', None)\n",
        "from pkg.api import Engine\ndef f(engine: Engine):\n    try:\n        engine.stop()\n"
        "    except AttributeError:\n        pass\n",
        "from pkg.api import Engine\ndef f(engine: Engine):\n    if isinstance(engine, Special):\n"
        "        engine.stop()\n",
        "from pkg.api import Engine\ndef f(engine: Engine):\n"
        "    engine.__class__, engine.model, engine.limit, engine.run\n",
        "from pkg.api import Kind\nKind.A.value, Kind.__members__, Kind['A']\n",
        "from pkg.api import Engine\nEngine.added = 1\nEngine.added\n",
        "from pkg import api\napi.__name__, api.__file__\n",
        "from pkg.api import Answer\ndef f(a: Answer):\n    return a.model_dump(), a.text, a.model_fields_set\n",
    ],
)
def test_attributes_that_are_there_or_guarded(tmp_path: Path, code: str) -> None:
    assert told(check(tmp_path, code)) == []


def test_a_changed_default_is_told_only_where_it_is_not_given(tmp_path: Path) -> None:
    report = check(tmp_path, "from pkg.api import Engine\nEngine('m')\nEngine('m', seed=1)\n")
    assert told(report) == [("default", 2, "Engine(seed)")]
    assert "changed from 0 to 1" in report.new[0].what


def test_a_gained_switch_that_is_on(tmp_path: Path) -> None:
    code = (
        "from pkg.api import Settings\nSettings(model='m')\nSettings(model='m', normalize=False)\nSettings(**options)\n"
    )
    assert told(check(tmp_path, code)) == [("default", 2, "Settings(normalize)")]


def test_a_spread_of_settings_that_the_file_never_names(tmp_path: Path) -> None:
    code = "from pkg.api import Settings\ndef f(options):\n    return Settings(**options)\n"
    assert told(check(tmp_path, code)) == [("default", 3, "Settings(normalize)")]


def test_a_gained_field_of_a_model(tmp_path: Path) -> None:
    report = check(tmp_path, "from pkg.api import Answer\nAnswer(text='')\nAnswer(text='', details=None)\n")
    assert told(report) == [("field", 2, "Answer(details)")]


def test_without_from_nothing_is_said_of_defaults(tmp_path: Path) -> None:
    assert told(check(tmp_path, "from pkg.api import Engine, Answer\nEngine('m')\nAnswer(text='')\n", old=False)) == []


@pytest.mark.parametrize(
    "code",
    [
        "from pkg.api import Engine\ndef f():\n    settings = dict(model=1, seed=0, speed=2)\n    Engine(**settings)\n",
        "from pkg.api import Engine\nsettings = {'model': 1, 'seed': 0,\n            'speed': 2}\nEngine(**settings)\n",
    ],
)
def test_settings_written_out_as_a_dict(tmp_path: Path, code: str) -> None:
    assert told(check(tmp_path, code, old=False)) == [("call", 3, "Engine(speed)")]


def test_a_dict_that_loses_keys_is_not_judged(tmp_path: Path) -> None:
    code = "from pkg.api import Engine\ndef f():\n    s = dict(model=1, seed=0, speed=2)\n    s.pop('speed')\n"
    "    Engine(**s)\n"
    assert told(check(tmp_path, code, old=False)) == []


def test_code_nested_thousands_deep(tmp_path: Path) -> None:
    code = f"from pkg.api import kernel\ntotal = {' + '.join(['1'] * 900)}\nkernel(1, layer=2)\n"
    assert {item.line for item in check(tmp_path, code, old=False).new} == {3}
