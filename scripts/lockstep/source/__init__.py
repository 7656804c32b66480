"""Downstream code against a version of a package, from the sources in its wheel: nothing is installed or run."""

from __future__ import annotations

from lockstep.source.config import SourceConfig, load_config
from lockstep.source.findings import Finding
from lockstep.source.report import SourceReport
from lockstep.source.run import check_source

__all__ = ["Finding", "SourceConfig", "SourceReport", "check_source", "load_config"]
