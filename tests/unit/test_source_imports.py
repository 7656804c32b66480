"""check-source: imports, their guards, and where a lost name went. Each test makes a tiny package of two versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.errors import LockstepError
from lockstep.source import Finding, SourceConfig, SourceReport, check_source

OLD = {
    "pkg/__init__.py": "from .version import __version__\n",
    "pkg/version.py": "__version__ = '1.0'\n",
    "pkg/old/__init__.py": "",
    "pkg/old/protocol.py": "class Answer:\n    pass\n",
    "pkg/gone.py": "def helper():\n    pass\n",
}
NEW = {
    "pkg/__init__.py": (
        "from .version import __version__\nimport typing\n"
        "NAMES = {'Lazy': '.new.protocol:Answer'}\n"
        "if typing.TYPE_CHECKING:\n    from .new.protocol import Answer as Lazy\n"
        "def __getattr__(name):\n"
        "    if name in NAMES:\n        return load(NAMES[name])\n    raise AttributeError(name)\n"
    ),
    "pkg/version.py": "__version__ = '2.0'\n",
    "pkg/new/__init__.py": "",
    "pkg/new/protocol.py": "class Answer:\n    pass\n",
    "pkg/typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .new.protocol import Answer\n",
    "pkg/stars.py": "from .new.protocol import *\n",
    "pkg/namespace/inner.py": "value = 1\n",
    "pkg/_C.abi3.so": "",
    "pkg/tables.py": "import sys\nfor name in ('a', 'b'):\n    globals()[name] = 1\n",
}


def make(folder: Path, files: dict[str, str]) -> Path:
    """Write files below a folder and return it."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def check(tmp_path: Path, code: str, *, old: bool = False, config: SourceConfig | None = None) -> SourceReport:
    """Check one downstream file against NEW, with OLD as --from where asked."""
    tree = make(tmp_path / "tree", {"down/__init__.py": "", "down/use.py": code})
    new = make(tmp_path / "new", NEW)
    frm = make(tmp_path / "old", OLD) if old else None
    return check_source(tree, "pkg", str(new), str(frm) if frm else None, config or SourceConfig())


def told(report: SourceReport) -> list[tuple[str, int, str]]:
    return [(item.kind, item.line, item.symbol) for item in report.new]


def test_a_moved_name_is_named_with_its_new_place(tmp_path: Path) -> None:
    report = check(tmp_path, "import os\nfrom pkg.old.protocol import Answer\n", old=True)
    assert told(report) == [("import", 2, "pkg.old.protocol.Answer")]
    assert report.new[0].fix == "moved: from pkg.new.protocol import Answer"
    assert report.new[0].path == "down/use.py"


def test_an_import_within_a_function_counts(tmp_path: Path) -> None:
    report = check(tmp_path, "def f():\n    class Inner:\n        def g(self):\n            import pkg.gone\n")
    assert told(report) == [("import", 4, "pkg.gone")]


@pytest.mark.parametrize(
    "code",
    [
        "from pkg import Lazy, __version__, new, _C, namespace\n",
        "from pkg.new import protocol\nfrom pkg.namespace import inner\nfrom pkg.namespace.inner import value\n",
        "from pkg.stars import Answer\nfrom pkg.stars import *\n",
        "from pkg._C import anything\n",
        "from pkg.tables import a, whatever\n",
        "import pkg.new.protocol as p\np.Answer\n",
        "try:\n    from pkg.gone import helper\nexcept ImportError:\n    helper = None\n",
        "try:\n    from pkg.gone import helper\nexcept (ModuleNotFoundError, KeyError):\n    helper = None\n",
        "try:\n    import pkg.gone\nexcept Exception:\n    pass\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import pkg.gone\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.gone import helper\n",
        "import pkg\nfrom packaging import version\nif version.parse(pkg.__version__) < version.parse('2'):\n"
        "    from pkg.gone import helper\nelse:\n    from pkg.gone2 import helper\n",
        "import pkg\nOLD = pkg.__version__ < '2'\nif OLD:\n    from pkg.gone import helper\n",
        "import pkg\ndef f():\n    if pkg.__version__ >= '2':\n        return None\n"
        "    from pkg.gone import helper\n    return helper\n",
        "if is_pkg_equal('1.0.0'):\n    from pkg.gone import helper\n",
        "import importlib.util\nif importlib.util.find_spec('pkg.gone'):\n    import pkg.gone\n",
        "try:\n    from pkg.new.protocol import Answer\nexcept ImportError:\n    from pkg.old.protocol import Answer\n",
        "try:\n    import flash\n    HAS = True\nexcept ImportError:\n    HAS = False\nif HAS:\n    import pkg.gone\n",
    ],
)
def test_what_resolves_or_is_guarded_is_silent(tmp_path: Path, code: str) -> None:
    assert told(check(tmp_path, code)) == []


def test_a_handler_that_raises_again_guards_nothing(tmp_path: Path) -> None:
    code = (
        "try:\n    from pkg.gone import helper\nexcept ImportError as error:\n"
        "    raise ImportError('install pkg') from error\n"
    )
    assert told(check(tmp_path, code)) == [("import", 2, "pkg.gone.helper")]


def test_a_fallback_is_judged_where_what_it_stands_for_fails(tmp_path: Path) -> None:
    code = "try:\n    from pkg.older import Answer\nexcept ImportError:\n    from pkg.old.protocol import Answer\n"
    assert told(check(tmp_path, code)) == [("import", 4, "pkg.old.protocol.Answer")]


def test_a_name_for_type_checkers_only_cannot_be_imported(tmp_path: Path) -> None:
    report = check(tmp_path, "from pkg.typed import Answer\n")
    assert told(report) == [("import", 1, "pkg.typed.Answer")]
    assert "type checkers only" in report.new[0].what


def test_a_lazy_module_says_no_to_what_is_not_in_its_table(tmp_path: Path) -> None:
    assert told(check(tmp_path, "from pkg import Nothing\n")) == [("import", 1, "pkg.Nothing")]


def test_names_in_strings(tmp_path: Path) -> None:
    code = (
        "from unittest.mock import patch\nimport importlib\n"
        "with patch('pkg.old.protocol.Answer'):\n    pass\n"
        "importlib.import_module('pkg.gone')\n"
        "def test(monkeypatch):\n    monkeypatch.setattr('pkg.new.protocol.Answer', 1)\n"
        "    monkeypatch.setattr('pkg.new.protocol.Other', 1, raising=False)\n"
    )
    assert [line for _, line, _ in told(check(tmp_path, code))] == [3, 5]


def test_what_was_broken_before_is_apart(tmp_path: Path) -> None:
    report = check(tmp_path, "import pkg.never\nimport pkg.gone\n", old=True)
    assert told(report) == [("import", 2, "pkg.gone")]
    assert [item.symbol for item in report.known] == ["pkg.never"]


def test_a_file_that_does_not_parse_is_a_finding(tmp_path: Path) -> None:
    report = check(tmp_path, "import pkg\ndef broken(:\n")
    assert told(report) == [("syntax", 2, "down/use.py")]
    assert not report.ok


def test_unread_files_are_no_findings(tmp_path: Path) -> None:
    tree = make(tmp_path / "t", {"a.py": "def broken(:\n", "b.py": "import pkg\n", "empty.py": ""})
    (tree / "dangling.py").symlink_to(tree / "nowhere")
    (tree / "bytes.py").write_bytes(b"import pkg\n\x00")
    report = check_source(tree, "pkg", str(make(tmp_path / "new", NEW)), None, SourceConfig())
    assert [item.path for item in report.new] == ["bytes.py", "dangling.py"]


def test_relative_imports_and_namespace_packages_of_the_tree(tmp_path: Path) -> None:
    files = {
        "src/ns/down/__init__.py": "from pkg.new.protocol import Answer as Theirs\n",
        "src/ns/down/deep/use.py": "from .. import Theirs\nfrom ns.down import Theirs as Same\nTheirs.missing\n"
        "Same.missing\n",
        "src/ns/down/deep/pkgs.py": "import pkg\nfrom ..deep.use import Same\nSame.missing\n",
    }
    report = check_source(make(tmp_path / "t", files), "pkg", str(make(tmp_path / "new", NEW)), None, SourceConfig())
    # use.py does not speak of the package, so it is not looked at; pkgs.py reaches it through two files of the tree.
    assert [(item.path, item.line) for item in report.new] == [("src/ns/down/deep/pkgs.py", 3)]


@pytest.mark.parametrize(("to", "says"), [("/nowhere/x.whl", "no such wheel"), ("not a version", "neither a version")])
def test_bad_versions_are_one_sentence(tmp_path: Path, to: str, says: str) -> None:
    with pytest.raises(LockstepError, match=says):
        check_source(make(tmp_path / "t", {"a.py": "import pkg\n"}), "pkg", to, None, SourceConfig())


def test_a_wheel_that_is_no_zip_is_one_sentence(tmp_path: Path) -> None:
    wheel = tmp_path / "pkg-1-py3-none-any.whl"
    wheel.write_bytes(b"not a zip")
    with pytest.raises(LockstepError, match="is not a wheel"):
        check_source(make(tmp_path / "t", {"a.py": "import pkg\n"}), "pkg", str(wheel), None, SourceConfig())


def test_a_tree_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="no such folder"):
        check_source(tmp_path / "nowhere", "pkg", str(make(tmp_path / "new", NEW)), None, SourceConfig())


def test_findings_order_and_equality() -> None:
    one = Finding("import", "a.py", 1, "x", "first")
    assert one.key == Finding("import", "a.py", 1, "x", "said otherwise").key


def test_a_folder_named_like_the_package_is_no_copy_of_it(tmp_path: Path) -> None:
    files = {
        "examples/pkg/__init__.py": "",
        "examples/pkg/helper.py": "import pkg\nfrom .other import thing\n",
        "examples/pkg/other.py": "thing = 1\n",
        "examples/pkg/more.py": "from pkg.gone import helper\n",
    }
    report = check_source(make(tmp_path / "t", files), "pkg", str(make(tmp_path / "new", NEW)), None, SourceConfig())
    assert [(item.path, item.line) for item in report.new] == [("examples/pkg/more.py", 1)]


def test_a_copy_of_the_package_deeper_in_the_tree_is_left_out(tmp_path: Path) -> None:
    files = {f"third_party/{name}": text for name, text in NEW.items()}
    files |= {"third_party/pkg/use.py": "from pkg.gone import never\n", "own.py": "import pkg.gone\n"}
    report = check_source(make(tmp_path / "t", files), "pkg", str(make(tmp_path / "new", NEW)), None, SourceConfig())
    assert [item.path for item in report.new] == ["own.py"]
    assert report.skipped["files of copies of the package deeper in the tree"] == 9


def test_the_package_against_itself_keeps_its_own_faults_aside(tmp_path: Path) -> None:
    files = NEW | {"pkg/wrong.py": "from pkg.gone import helper\n"}
    new = make(tmp_path / "new", files)
    report = check_source(make(tmp_path / "t", files), "pkg", str(new), None, SourceConfig())
    assert report.ok
    assert [(item.path, item.kind) for item in report.notes] == [("pkg/wrong.py", "import")]


def test_a_namespace_is_shared_with_other_packages(tmp_path: Path) -> None:
    """`megatron` holds megatron-core and megatron-bridge: a check of one must not miss the other."""
    new = make(tmp_path / "new", {"mega/core/__init__.py": "value = 1\n", "mega/core/deep/x.py": "def f(): ...\n"})
    code = (
        "import mega.core\nimport mega.bridge\nfrom mega import core, bridge\nfrom mega.bridge import thing\n"
        "core.value\nmega.core.value\nmega.bridge.value\n"
        "core.gone\nmega.core.gone\nfrom mega.core.deep import y\nfrom mega.core import none\n"
    )
    report = check_source(make(tmp_path / "t", {"a.py": code}), "mega-core", str(new), None, SourceConfig())
    assert [(item.kind, item.line) for item in report.new] == [
        ("attribute", 8),
        ("attribute", 9),
        ("import", 10),
        ("import", 11),
    ]


def test_tests_that_a_wheel_brings_along_are_not_the_trees_tests(tmp_path: Path) -> None:
    new = make(tmp_path / "new", NEW | {"tests/__init__.py": "", "tests/theirs.py": ""})
    files = {"tests/__init__.py": "", "tests/ours.py": "x = 1\n", "use.py": "import pkg\nfrom tests.ours import x\n"}
    report = check_source(make(tmp_path / "t", files), "pkg", str(new), None, SourceConfig())
    assert report.new == ()


def test_a_part_of_a_package_as_the_tree(tmp_path: Path) -> None:
    files = {
        "down/__init__.py": "",
        "down/inner/__init__.py": "",
        "down/inner/a.py": "from down.inner.b import Answer\nimport pkg\nAnswer.gone\n",
        "down/inner/b.py": "from pkg.new.protocol import Answer\n",
    }
    tree = make(tmp_path / "t", files) / "down" / "inner"
    report = check_source(tree, "pkg", str(make(tmp_path / "new", NEW)), None, SourceConfig())
    assert [(item.path, item.line) for item in report.new] == [("a.py", 3)]
