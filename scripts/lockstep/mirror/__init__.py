"""Wheels that a build must not depend on fetching: declared, checked, and kept in a store of our own."""

# See lockstep.compile: the matrix's models import `mirror.spec`, which takes its scalar types from `matrix.types`.
import lockstep.matrix  # noqa: F401
