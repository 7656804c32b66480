"""The JSON schema of versions.yaml, for editors. It follows from the models alone."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pydantic

from lockstep.matrix import models


def schema(path: Path) -> str:
    """Return the schema; what lies at `path` where that is of these very models, since making it takes 30 ms."""
    comment = f"of models with sha256 {_models_hash()}"
    try:
        text = path.read_text(encoding="utf-8")
        if json.loads(text).get("$comment") == comment:
            return text
    except (OSError, ValueError, AttributeError):
        pass  # missing or damaged: it is written again
    return text_of(comment)


def text_of(comment: str = "") -> str:
    """Return the schema, made anew."""
    comment = comment or f"of models with sha256 {_models_hash()}"
    return json.dumps({"$comment": comment, **models.Matrix.model_json_schema()}, indent=2, sort_keys=True) + "\n"


def _models_hash() -> str:
    """Return the hash of every module that the models come from, and of the library that reads them."""
    names = {getattr(value, "__module__", None) or "" for value in vars(models).values()} | {models.__name__}
    total = hashlib.sha256(pydantic.VERSION.encode())
    for name in sorted(names):
        if name.startswith("lockstep."):
            total.update(Path(str(sys.modules[name].__file__)).read_bytes())
    return total.hexdigest()
