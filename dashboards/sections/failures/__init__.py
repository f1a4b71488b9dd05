"""Runs without a result: those that failed or collapsed, with their errors."""

from collections.abc import Mapping
from typing import Any

from ...report_section import PageContext, Section


class Failures(Section):
    """The runs without a result, with message and traceback of each."""

    name, title, order, folder = "failures", "Failures", 130, "failures"
    needs = ("without_result",)

    def values(self, context: PageContext) -> Mapping[str, Any]:
        """Split each error into its message and its traceback."""
        runs = context.report.without_result
        return {"runs": [(r, *(r.error or "no message").partition("\n\n")[::2]) for r in runs]}
