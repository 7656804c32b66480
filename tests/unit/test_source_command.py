"""check-source as a command: exit codes, what is printed, and extensions that the code names itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lockstep.cli.source import register
from lockstep.source import SourceConfig, check_source

PACKAGE = {
    "vllm/__init__.py": "def start(model): ...\n",
    "vllm/v1/worker/gpu_worker.py": "class Worker:\n    def sync(self): ...\n",
}


def make(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run(*words: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    done = CliRunner().invoke(app, ["check-source", *words])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return make(tmp_path / "new", PACKAGE)


def test_nothing_found(tmp_path: Path, package: Path) -> None:
    tree = make(tmp_path / "tree", {"a.py": "import vllm\nvllm.start(model=1)\n"})
    code, out, err = run(str(tree), "--to", str(package))
    assert code == 0
    assert "nothing found" in out
    assert "error" not in err


def test_findings_are_printed_and_written(tmp_path: Path, package: Path) -> None:
    tree = make(tmp_path / "tree", {"a.py": "import vllm\nvllm.start(modle=1)\nimport vllm.gone\n"})
    code, out, _ = run(str(tree), "--to", str(package), "--json", str(tmp_path / "r.json"))
    assert code == 1
    assert "a.py:2" in out
    assert "a.py:3" in out
    rows = json.loads((tmp_path / "r.json").read_text())["new"]
    assert [(row["kind"], row["line"]) for row in rows] == [("call", 2), ("call", 2), ("import", 3)]
    assert "perhaps it is now `model`" in rows[1]["fix"]


def test_json_on_stdout(tmp_path: Path, package: Path) -> None:
    code, out, _ = run(str(make(tmp_path / "t", {"a.py": "import vllm\n"})), "--to", str(package), "--format", "json")
    assert code == 0
    assert json.loads(out)["files_using_the_package"] == 1


@pytest.mark.parametrize(
    "words",
    [
        ["/nowhere", "--to", "{package}"],
        ["{tree}", "--to", "/nowhere/x-1-py3-none-any.whl"],
        ["{tree}", "--to", "so new"],
        ["{tree}", "--to", "{package}", "--format", "pdf"],
        ["{tree}", "--to", "{package}", "--config", "/nowhere/x.toml"],
        ["{tree}"],
    ],
)
def test_what_cannot_be_checked_is_one_sentence_and_exit_code_2(
    tmp_path: Path, package: Path, words: list[str]
) -> None:
    tree = make(tmp_path / "tree", {"a.py": "import vllm\n"})
    code, _, err = run(*(word.format(tree=tree, package=package) for word in words))
    assert code == 2
    assert "Traceback" not in err
    assert err.strip()


@pytest.mark.parametrize(
    "code",
    [
        'import vllm\nf(worker_extension_cls="down.ext.Ext")\n',
        'import vllm\nsettings = {"worker_extension_cls": "down.ext.Ext"}\n',
        'import vllm\nsettings["worker_extension_cls"] = "down.ext.Ext" if x else "down.ext.Other"\n',
    ],
)
def test_an_extension_that_the_code_names(tmp_path: Path, package: Path, code: str) -> None:
    files = {"down/__init__.py": "", "down/ext.py": "class Ext:\n    def sync(self): ...\n", "down/start.py": code}
    report = check_source(make(tmp_path / "tree", files), "vllm", str(package), None, SourceConfig())
    assert [(item.kind, item.path, item.line) for item in report.new] == [("collision", "down/ext.py", 2)]
