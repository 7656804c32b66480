"""Wheels built from source: what is declared, where its source comes from, how it is built, and what it turned into."""

# The matrix's models import `compile.spec`, which takes its scalar types from `matrix.types`. Loading the matrix
# first makes that work whichever of the two packages a program imports first.
import lockstep.matrix  # noqa: F401
