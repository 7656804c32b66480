"""check-source: what the configuration declares (extensions, proxies, mirrors, watch, accepted), and subclasses."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from lockstep.errors import LockstepError
from lockstep.source import SourceConfig, SourceReport, check_source, load_config

_CLIENT = """
from abc import ABC, abstractmethod
class Client(ABC):
    config: dict
    @abstractmethod
    def generate(self, prompt): ...
    def admit(self, n=1): ...
"""
_SERVE = """
from pkg.client import Client
def get_client(request) -> Client: ...
class Base:
    def __init__(self, client: Client):
        self.client = client
    def ask(self):
        if hasattr(self.client, "optional"):
            self.client.optional()
        return self.client.generate("x"), self.client.config
"""
OLD = {
    "pkg/__init__.py": "",
    "pkg/worker.py": "class Root:\n    def __init__(self):\n        self.rank = 0\nclass Worker(Root):\n"
    "    def load(self, path): ...\n"
    "    def legacy(self): ...\n",
    "pkg/client.py": _CLIENT.replace("    def admit(self, n=1): ...\n", ""),
    "pkg/serve.py": _SERVE,
    "pkg/more.py": "",
    "pkg/quant.py": 'class Method:\n    def load(self, layer: int) -> None:\n        """Old words."""\n'
    "        if layer.on and not layer.calc:\n            layer.scale = 1\n        layer.calc = False\n"
    "    def same(self, x): return x\n",
}
NEW = {
    "pkg/__init__.py": "",
    "pkg/worker.py": "class Root:\n    def __init__(self):\n        self.rank = 0\n        self.step = 0\n"
    "    def sync(self): ...\n"
    "class Worker(Root):\n    def load(self, path, *, strict=True): ...\n",
    "pkg/client.py": _CLIENT + "    @abstractmethod\n    def status(self): ...\n",
    "pkg/serve.py": _SERVE,
    "pkg/more.py": "from pkg.serve import Base, get_client\nclass More(Base):\n    def go(self, request):\n"
    "        self.client.admit(2)\n"
    "        get_client(request).status()\n",
    "pkg/quant.py": 'class Method:\n    def load(self, layer) -> None:\n        """New words."""\n'
    "        if layer.on:\n            layer.scale = 1\n"
    "    def same(self, x: int) -> int:\n        '''Says more.'''\n        return x\n",
}


def check(tmp_path: Path, code: str, settings: str = "", *, old: bool = True, package: str = "pkg") -> SourceReport:
    """Check down/use.py under a lockstep-source.toml of `settings`."""
    trees = (
        ("old", OLD),
        ("new", NEW),
        ("tree", {"down/__init__.py": "", "down/use.py": code, "lockstep-source.toml": settings}),
    )
    for folder, files in trees:
        for name, text in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return check_source(tmp_path / "tree", package, str(tmp_path / "new"), str(tmp_path / "old") if old else None)


def told(report: SourceReport) -> list[tuple[str, int, str]]:
    return [(item.kind, item.line, item.symbol) for item in report.new]


EXTENSION = 'worker_extensions = [{class = "down.use:Ext", target = "pkg.worker.Worker"}]\n'
PROXY = 'proxies = [{class = "down.use:Proxy", stands_for = "pkg.client.Client"}]\n'
MIRROR = 'mirrors = [{function = "down.use:load", upstream = "pkg.quant:Method.load"}]\n'


def test_an_extension_that_takes_a_name_of_the_worker(tmp_path: Path) -> None:
    code = "class Ext:\n    rank: int\n    def sync(self): ...\n    def mine(self): ...\n"
    report = check(tmp_path, code, EXTENSION)
    assert told(report) == [("collision", 3, "Ext.sync")]
    assert "from Root" in report.new[0].what
    assert "pkg/worker.py:5" in report.new[0].what


def test_an_extension_collides_through_its_own_base_and_with_what_was_there(tmp_path: Path) -> None:
    code = "class Under:\n    def sync(self): ...\nclass Ext(Under):\n    def load(self, path): ...\n"
    report = check(tmp_path, code, EXTENSION)
    assert told(report) == [("collision", 2, "Under.sync")]
    assert [item.symbol for item in report.known] == ["Ext.load"]


def test_an_attribute_that_both_assign_is_told_where_it_is_new(tmp_path: Path) -> None:
    code = "class Ext:\n    def go(self):\n        self.rank = 1\n        self.step = 2\n"
    assert told(check(tmp_path, code, EXTENSION)) == [("collision", 4, "Ext.step")]


def test_a_proxy_lacks_what_the_package_now_calls(tmp_path: Path) -> None:
    code = "class Proxy:\n    def __init__(self):\n        self.config = {}\n    def generate(self, prompt): ...\n"
    report = check(tmp_path, code, PROXY)
    assert told(report) == [("proxy", 1, "Proxy.admit"), ("proxy", 1, "Proxy.status")]
    assert "pkg/more.py:4" in report.new[0].what
    assert report.new[0].fix == "add `admit` as pkg.client.Client has it"


@pytest.mark.parametrize(
    "code",
    [
        "class Proxy:\n    config = None\n    def generate(self, p): ...\n    def admit(self, n=1): ...\n"
        "    def status(self): ...\n",
        "class Proxy:\n    def __getattr__(self, name): return getattr(self.inner, name)\n",
        "from pkg.client import Client\nclass Proxy(Client):\n    def generate(self, p): ...\n"
        "    def status(self): ...\n",
    ],
)
def test_a_proxy_that_has_or_passes_on_everything(tmp_path: Path, code: str) -> None:
    assert told(check(tmp_path, code, PROXY)) == []


def test_a_mirror_whose_original_changed(tmp_path: Path) -> None:
    code = (
        "def load(self, layer):\n    if layer.on and (not layer.calc):\n        layer.scale = 1\n"
        "    layer.calc = False\n"
    )
    report = check(tmp_path, code, MIRROR)
    assert told(report) == [("mirror", 1, "pkg.quant:Method.load")]
    assert "-    layer.calc = False" in report.new[0].detail


@pytest.mark.parametrize(
    "code",
    [
        "def load(self, layer: object) -> None:\n    '''Ours.'''\n    if layer.on:\n        layer.scale = 1\n",
        "def load(self, layer):\n    log('extra')\n    if layer.on:\n        layer.scale = 2\n",
    ],
)
def test_a_mirror_that_followed(tmp_path: Path, code: str) -> None:
    assert told(check(tmp_path, code, MIRROR)) == []


def test_words_and_annotations_are_no_change(tmp_path: Path) -> None:
    settings = 'mirrors = [{function = "down.use:f", upstream = "pkg.quant:Method.same"}]\n'
    assert told(check(tmp_path, "def f(self, x):\n    return [x]\n", settings)) == []


def test_an_exact_mirror_is_compared_with_its_original(tmp_path: Path) -> None:
    settings = 'mirrors = [{function = "down.use:f", upstream = "pkg.quant:Method.same", exact = true}]\n'
    assert [item[0] for item in told(check(tmp_path, "def f(self, x):\n    return [x]\n", settings, old=False))] == [
        "mirror"
    ]


def test_a_mirror_judged_as_of_a_version(tmp_path: Path) -> None:
    code = "def load(self, layer):\n    layer.calc = False\n"
    settings = (
        f'mirrors = [{{function = "down.use:load", upstream = "pkg.quant:Method.load", as_of = "{tmp_path}/new"}}]\n'
    )
    assert told(check(tmp_path, code, settings)) == []


def test_a_mirror_whose_original_is_gone(tmp_path: Path) -> None:
    settings = 'mirrors = [{function = "down.use:f", upstream = "pkg.worker:Worker.legacy"}]\n'
    report = check(tmp_path, "def f(self): ...\n", settings)
    assert told(report) == [("mirror", 1, "pkg.worker:Worker.legacy")]


def test_subclasses_of_the_package(tmp_path: Path) -> None:
    code = (
        "from pkg.worker import Worker\nfrom pkg.client import Client\n"
        "class Mine(Worker):\n"
        "    def sync(self, *, how): ...\n"  # the base has it now
        "    def legacy(self): ...\n"  # the base had it
        "    def load(self, path): ...\n"  # the base takes more now
        "class Fits(Worker):\n    def load(self, path, **more): ...\n"
        "class Engine(Client):\n    def generate(self, prompt): ...\n"
    )
    assert told(check(tmp_path, code)) == [
        ("collision", 4, "Mine.sync"),
        ("override", 5, "Mine.legacy"),
        ("override", 6, "Mine.load"),
        ("abstract", 9, "Engine(status)"),
    ]


def test_watched_defaults(tmp_path: Path) -> None:
    report = check(tmp_path, "import pkg\n", 'watch = ["pkg.worker:Worker.load", "pkg.worker:Nothing"]\n')
    assert [(item.kind, item.symbol) for item in report.new] == [
        ("default", "pkg.worker:Worker.load(strict)"),
        ("config", "pkg.worker:Nothing"),
    ]
    assert "gained `strict`, by default True" in report.new[0].what


def test_accepted_findings_stand_apart_with_their_reason(tmp_path: Path) -> None:
    code = "class Ext:\n    def sync(self): ...\n"
    row = '[[accepted]]\nkind = "collision"\nsymbol = "Ext.*"\nwhy = "renamed in the next release"\n'
    report = check(tmp_path, code, EXTENSION + row)
    assert report.ok
    assert [why for _, why in report.accepted] == ["renamed in the next release"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('symbol = "Other"\npackage = "pkg"\nwhy = "x"\n', "matches no finding"),
        ('symbol = "Ext.sync"\nuntil = 2020-01-01\nwhy = "x"\n', "ended on 2020-01-01"),
    ],
)
def test_an_acceptance_that_is_over_or_idle_is_a_finding(tmp_path: Path, row: str, says: str) -> None:
    report = check(
        tmp_path, "class Ext:\n    def sync(self): ...\n", f'{EXTENSION}[[accepted]]\nkind = "collision"\n{row}'
    )
    assert any(says in item.what for item in report.new)


def test_declarations_about_another_package_are_left_to_its_own_check(tmp_path: Path) -> None:
    settings = 'proxies = [{class = "down.use:X", stands_for = "other.Thing"}]\n'
    assert told(check(tmp_path, "import pkg\n", settings)) == []


def test_a_declaration_of_what_is_not_there_is_a_finding(tmp_path: Path) -> None:
    report = check(tmp_path, "import pkg\n", EXTENSION, old=False)
    assert told(report) == [("config", 0, "down.use:Ext")]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("proxies = 1\n", "proxies"),
        ('unknown = "x"\n', "unknown"),
        ("not toml", "cannot be read"),
        ('[[accepted]]\nkind = "call"\nsymbol = "x"\n', "why"),
    ],
)
def test_a_bad_configuration_is_one_sentence(tmp_path: Path, settings: str, says: str) -> None:
    with pytest.raises(LockstepError, match=says):
        check(tmp_path, "import pkg\n", settings)


def test_the_configuration_in_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.lockstep.check-source]\nwatch = ["pkg.a"]\n')
    (tmp_path / "src").mkdir()
    found, where = load_config(tmp_path / "src")
    assert found == SourceConfig(watch=("pkg.a",))
    assert where.endswith("pyproject.toml")


def test_the_json_report(tmp_path: Path) -> None:
    report = check(tmp_path, "class Ext:\n    def sync(self): ...\n", EXTENSION)
    row = json.loads(report.json())
    assert row["new"][0]["kind"] == "collision"
    assert row["to"].endswith("new")
    assert datetime.timedelta(seconds=row["seconds"]) >= datetime.timedelta(0)
