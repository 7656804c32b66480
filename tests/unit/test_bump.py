"""A bump from end to end: tiny wheels on an index of our own, resolved by the real uv."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import lockkit
import lockstep
import wheelkit
from lockstep.bump.follow import plan
from lockstep.bump.model import Report
from lockstep.errors import LockstepError
from lockstep.matrix import parse

MATRIX = """schema: 1
epoch: 1767225600
python: "3.13"
arches: [x86_64, aarch64]
bases:
  bootstrap: {suite: trixie, packages: [python3.13]}
lines: # a comment that must stay
  one: { fire: "1.0" }
  two: { fire: "1.0" }
backends:
  top:
    line: one
    requires: ["top==1.0", "friend==1.0"] # what it is about
    overrides:
      - requirement: shy<3
        why: version 3 has not been tried yet
    constraints:
      - requirement: capped<2
        why: version 2 removed what is used
    holds:
      - package: held
        version: "1.0"
        why: all venvs must have the same one
    exclude:
      - package: absent
        why: it is never imported by anybody
  mate:
    line: one
    requires: [mate]
  other:
    line: two
    requires: ["friend==1.0", fire]
images:
  both: {backends: [top, other]}
  mate: {backends: [mate]}
"""

WHEELS = [
    ("top", "1.0", ["fire", "friend==1.0", "shy", "deep", "absent", "held", "capped"]),
    # The next one moves a pin with it, brings one package in, sends one back, and drops another.
    ("top", "1.1", ["fire", "friend==1.1", "shy<2", "deep<2", "fresh", "held", "capped"]),
    ("top", "2.0", ["fire==2.0", "friend==1.1"]),
    ("top", "3.0", ["fire", "friend==1.0", "held==2.0"]),
    ("top", "4.0", ["fire", "friend==1.0", "capped==2.0"]),
    ("top", "5.0", ["fire", "friend==1.0", "nowhere"]),
    ("friend", "1.0", []),
    ("friend", "1.1", []),
    ("fire", "1.0", []),
    ("fire", "2.0", []),
    ("mate", "1.0", ["fire<2"]),
    ("shy", "1.0", []),
    ("shy", "2.0", []),
    ("shy", "3.0", []),
    ("deep", "1.0", []),
    ("deep", "2.0", []),
    ("fresh", "1.0", []),
    ("held", "1.0", []),
    ("held", "2.0", []),
    ("capped", "1.0", []),
    ("capped", "2.0", []),
]


@dataclass
class Site:
    """A checkout of its own beside an index of its own."""

    root: Path
    env: dict[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", "from lockstep.cli import main; main()"]
        return subprocess.run([*program, *words], env=self.env, capture_output=True, text=True, check=False)

    def bump(self, *words: str, code: int = 0) -> Report:
        done = self.run("bump", *words, "--out", str(self.root / "report"))
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return Report.model_validate_json((self.root / "report.json").read_text())

    def files(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.root)): path.read_text()
            for path in [self.root / "versions.yaml", *sorted(self.root.glob("images/*/*"))]
        }


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("bump")
    made = [lockkit.wheel(folder / "wheels", name, version, requires) for name, version, requires in WHEELS]
    with wheelkit.index(made) as index:
        root = folder / "checkout"
        (root / "docker" / "patches").mkdir(parents=True)
        (root / "versions.yaml").write_text(MATRIX)
        env = {
            **os.environ,
            "LOCKSTEP_ROOT": str(root),
            "LOCKSTEP_STATE": str(folder / "state"),
            "UV_CACHE_DIR": str(folder / "uv"),
            "UV_DEFAULT_INDEX": index.url,
            "UV_NO_CONFIG": "1",
            "PYTHONPATH": str(Path(lockstep.__file__).parents[1]),
        }
        site = Site(root, env)
        done = site.run("lock")
        assert done.returncode == 0, done.stderr
        yield site


@pytest.fixture
def site(master: Site) -> Iterator[Site]:
    before = master.files()
    yield master
    for name, text in before.items():
        (master.root / name).write_text(text)


def test_a_dry_run_reports_and_changes_nothing(site: Site) -> None:
    record = {"digest": "", "layers": [], "seconds": {"top-g": 60.0, "export": 10.0}, "wall": 70.0}
    path = site.root / "build" / "records" / "both.x86_64.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    before = site.files()
    report = site.bump("--backend", "top", "--to", "1.1", "--dry-run")
    assert site.files() == before
    _tells_what_moved_and_which_rules_matter(report)
    _tells_what_images_pay(report)
    _takes_minutes_from_the_last_builds_record(report)


def _tells_what_moved_and_which_rules_matter(report: Report) -> None:
    assert report.locked
    assert {(row.where, row.after) for row in report.edits} == {
        ("backends.top.requires[0]", "1.1"),
        ("backends.top.requires[1]", "1.1"),
    }
    moves = {row.package: (row.before, row.after, row.kind) for row in report.moves}
    assert moves == {
        "top": ("1.0", "1.1", "up"),
        "friend": ("1.0", "1.1", "up"),
        "deep": ("2.0", "1.0", "down"),
        "fresh": (None, "1.0", "in"),
    }
    assert all(row.arches == ["x86_64", "aarch64"] for row in report.moves)
    states = {row.rule: (row.was, row.state) for row in report.rules}
    assert states["shy<3"] == ("needed", "broken")  # the new top asks for shy below 2, and the override keeps 2.0
    assert states["absent"] == ("needed", "needless")
    assert states["capped<2"] == ("needed", "needed")
    assert states["held==1.0"] == ("needed", "needed")
    assert "deep is older than before in top" in report.faults


def _tells_what_images_pay(report: Report) -> None:
    assert {row.image for row in report.images} == {"both"}
    apart = {(row.package, tuple(row.versions.items())) for row in report.apart}
    assert apart == {("friend", (("top", "1.1"), ("other", "1.0")))}
    assert {row.arch for row in report.stages} == {"x86_64", "aarch64"}


def _takes_minutes_from_the_last_builds_record(report: Report) -> None:
    assert all(row.seconds is None for row in report.stages if row.arch == "aarch64")
    stages = {row.layer: row for row in report.stages if row.arch == "x86_64"}
    assert stages["top-g"].basis.startswith("its last build")
    seconds = stages["top-g"].seconds
    assert seconds is not None
    assert seconds > 0
    assert next(row for row in report.images if row.arch == "x86_64").export_seconds is not None


def test_a_line_that_is_contradicted_is_a_finding_with_a_what_if(site: Site) -> None:
    before = site.files()
    report = site.bump("--backend", "top", "--to", "2.0", code=1)
    assert site.files() == before
    assert not report.locked
    assert report.what_if
    assert [block.kind for block in report.blocks] == ["line"]
    assert "top 2.0 requires fire==2.0, and line one, on which mate rides too, pins fire 1.0" in report.blocks[0].what
    assert {row.backend: row.follows for row in report.follows} == {"top": True, "mate": False}
    assert {row.package: row.after for row in report.moves}["fire"] == "2.0"
    text = (site.root / "report.md").read_text()
    assert "cannot be locked" in text
    assert 'new-line: { fire: "2.0" }' in text


def test_what_the_resolver_cannot_solve_is_a_finding(site: Site) -> None:
    report = site.bump("--backend", "top", "--to", "5.0", code=1)
    assert [block.kind for block in report.blocks] == ["resolve"]
    assert "nowhere" in report.blocks[0].what


def test_a_package_that_nothing_pins_moves_in_the_lock_alone(site: Site) -> None:
    before = site.files()
    report = site.bump("--backend", "top", "--package", "deep", "--to", "1.0", "--dry-run")
    assert report.locked
    assert report.edits == []
    assert [(row.package, row.before, row.after) for row in report.moves] == [("deep", "2.0", "1.0")]
    assert site.files() == before


def test_a_line_moves_for_all_that_ride_on_it_or_not_at_all(site: Site) -> None:
    before = site.files()
    report = site.bump("--backend", "top", "--package", "fire", "--to", "2.0", code=1)
    assert site.files() == before
    assert {row.backend: row.follows for row in report.follows} == {"top": True, "mate": False}
    assert [block.kind for block in report.blocks] == ["resolve"]


@pytest.mark.parametrize(
    ("backend", "package", "to", "said"),
    [
        ("top", "top", "9.9", "top has no version 9.9"),
        ("mate", "friend", "1.1", "mate neither pins nor locks friend"),
        ("", "unheard-of", "1.1", "no backend pins or locks unheard-of"),
        ("", "fire", "2.0", "pinned by several lines"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_sentence(
    site: Site, monkeypatch: pytest.MonkeyPatch, backend: str, package: str, to: str, said: str
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", site.env["UV_DEFAULT_INDEX"])
    with pytest.raises(LockstepError, match=said):
        plan(parse(MATRIX), package, to, backend, {})


def test_an_unknown_backend_ends_with_one_sentence(site: Site) -> None:
    done = site.run("bump", "--backend", "none", "--to", "1")
    assert done.returncode == 1
    assert done.stderr.startswith('error: versions.yaml: there is no backend "none"; name one of top')
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("to", "kind", "why"),
    [("3.0", "hold", "all venvs must have the same one"), ("4.0", "constraint", "version 2 removed what is used")],
)
def test_a_hold_or_cap_that_is_contradicted_is_named_with_its_why(
    site: Site, monkeypatch: pytest.MonkeyPatch, to: str, kind: str, why: str
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", site.env["UV_DEFAULT_INDEX"])
    made = plan(parse(MATRIX), "top", to, "top", {})
    assert [(block.kind, block.why) for block in made.blocks] == [(kind, why)]


def test_a_stale_lock_is_relocked_first(site: Site) -> None:
    path = site.root / "versions.yaml"
    path.write_text(path.read_text().replace("shy<3", "shy<2"))
    done = site.run("bump", "--backend", "top", "--to", "1.1", "--dry-run")
    assert done.returncode == 1
    assert "make lock BACKEND=top" in done.stderr
