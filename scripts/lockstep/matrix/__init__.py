"""Step 1: what is wanted. versions.yaml as typed, checked data."""

from lockstep.matrix.load import digest, load, parse
from lockstep.matrix.models import Backend, Image, Matrix, Narrowed

__all__ = ["Backend", "Image", "Matrix", "Narrowed", "digest", "load", "parse"]
