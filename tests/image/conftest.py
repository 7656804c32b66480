"""What the image probes share: the image under test, and a record of what each module's import did."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from image.subject import SUBJECT, Subject


@pytest.fixture(scope="session")
def subject() -> Iterator[Subject]:
    """The image under test; writes the collected results when the session ends."""
    yield SUBJECT
    if path := os.environ.get("LOCKSTEP_RESULTS"):
        Path(path).write_text(json.dumps(SUBJECT.results, indent=1))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `venv` each venv of the image, `module` and `script` each pair of venv and declared name."""
    if "module" in metafunc.fixturenames:
        pairs = [(venv, name) for venv, backend in SUBJECT.backends.items() for name in backend.imports]
        metafunc.parametrize(("venv", "module"), pairs, ids=[f"{venv}:{name}" for venv, name in pairs])
    elif "script" in metafunc.fixturenames:
        pairs = [(venv, name) for venv, backend in SUBJECT.backends.items() for name in backend.scripts]
        metafunc.parametrize(("venv", "script"), pairs, ids=[f"{venv}:{name}" for venv, name in pairs])
    elif "venv" in metafunc.fixturenames:
        metafunc.parametrize("venv", list(SUBJECT.backends))
