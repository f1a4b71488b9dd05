"""Truth ratios: the two distributions that Forget Quality compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...report_section import PageContext, ReportSection
from .data import ratio_data


def _values(context: PageContext) -> Mapping[str, Any] | None:
    """Leave the section out where no test of truth ratios is behind the headline."""
    test = context.report.headline.forgotten.test
    if test is None:
        return None
    return {"test": test}


SECTION = ReportSection(
    folder="truth_ratios",
    id="ratios",
    title="Truth ratios",
    values=_values,
    lazy_data=lambda context: ratio_data(context.evaluations, context.report.records),
)
