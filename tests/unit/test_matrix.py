"""versions.yaml: what is accepted, and what each bad input is told, with file, line and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep import paths
from lockstep.errors import LockstepError
from lockstep.matrix import Matrix, load, parse, schema

GOOD = """\
schema: 1
epoch: 1767225600
python: "3.13"
arches: [x86_64]
bases:
  bootstrap: {suite: trixie, packages: [python3.13]}
lines:
  new: {idna: "3.10"}
backends:
  one:
    line: new
    requires: ["idna"]
images:
  one: {backends: [one]}
"""


def told(text: str) -> str:
    with pytest.raises(LockstepError) as caught:
        parse(text)
    return str(caught.value)


def test_the_committed_matrix_is_valid() -> None:
    assert load().images["smoke"].backends == ["smoke-a", "smoke-b"]


def test_a_small_matrix_is_valid() -> None:
    assert parse(GOOD).backends["one"].requires == ["idna"]


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ('"3.10"', "3.10", "versions.yaml:8 lines.new.idna", "YAML reads 3.1 as a number; quote it"),
        ('"3.10"', "2026-01-01", "versions.yaml:8 lines.new.idna", "YAML reads 2026-01-01 as a date; quote it"),
        ("python:", "pyhton:", "versions.yaml:3 pyhton", "is not a known key"),
        ("    line: new\n", "", "versions.yaml:10 backends.one", "is missing"),
        ("[one]}", "[two]}", "versions.yaml:14 images.one.backends.0", 'there is no backend "two"'),
        ("line: new", "line: old", "versions.yaml:11 backends.one.line", 'there is no line "old"'),
        ('["idna"]', '["idna>=4"]', "versions.yaml:12 backends.one.requires.0", "contradicts the line"),
        ('["idna"]', '["idna ="]', "versions.yaml:12 backends.one.requires.0", "is not a requirement"),
        ('"3.10"', '"three"', "versions.yaml:8 lines.new.idna", "is not a version"),
        ("schema: 1", "schema: 2", "versions.yaml:1 schema", "should be 1"),
        ("[one]}", "[one, one]}", "versions.yaml:14 images.one.backends", "named twice"),
        ("  one: {backends", "  One: {backends", "versions.yaml:14 images.One", "should match pattern"),
        ("requires:", "requires: [\n  x", "versions.yaml:13", "is not YAML"),
    ],
)
def test_bad_input_is_named_with_file_line_and_key(old: str, new: str, where: str, what: str) -> None:
    message = told(GOOD.replace(old, new, 1))
    assert where in message
    assert what in message


def test_a_reason_is_required() -> None:
    text = GOOD.replace('["idna"]', '["idna"]\n    overrides: [{requirement: "idna<4"}]')
    assert "backends.one.overrides.0.why: is missing" in told(text)


def test_credentials_in_an_address_are_not_repeated() -> None:
    text = GOOD.replace('["idna"]', '["idna @ https://user:hunter2@index.invalid/idna-3.10-py3-none-any.whl"]')
    message = told(text)
    assert "names an address" in message
    assert "hunter2" not in message


def test_the_schema_that_editors_use_is_current() -> None:
    written = json.loads((paths.ROOT / "versions.schema.json").read_text())
    assert written.pop("$comment").startswith("of models with sha256 ")
    assert written == json.loads(json.dumps(Matrix.model_json_schema()))


def test_the_schema_is_made_anew_only_where_the_models_have_changed(tmp_path: Path) -> None:
    path = tmp_path / "versions.schema.json"
    made = schema.schema(path)
    assert made == schema.text_of()
    of_these_models = json.dumps({"$comment": json.loads(made)["$comment"]})
    path.write_text(of_these_models)
    assert schema.schema(path) == of_these_models
    for other in ("{}", "[]", "no JSON", json.dumps({"$comment": "of models with sha256 0"})):
        path.write_text(other)
        assert schema.schema(path) == made
