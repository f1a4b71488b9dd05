"""Runs without a result: those that failed or collapsed, with their errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...report_section import PageContext, ReportSection


def _values(context: PageContext) -> Mapping[str, Any] | None:
    runs = context.report.without_result
    return {"runs": [(run, *_error(run.error)) for run in runs]} if runs else None


def _error(error: str | None) -> tuple[str, str]:
    """Split an error into its message and its traceback."""
    message, _, traceback = (error or "no message").partition("\n\n")
    return message, traceback


SECTION = ReportSection("failures", "failures", "Failures", _values)
