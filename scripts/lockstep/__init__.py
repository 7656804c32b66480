"""Lockstep: reproducible container images for LLM reinforcement-learning stacks."""

__version__ = "0.1.0"
