"""Truth ratios: the two distributions that Forget Quality compares."""

from ...report_section import ReportSection
from .data import ratio_data

SECTION = ReportSection(
    folder="truth_ratios",
    id="ratios",
    title="Truth ratios: what Forget Quality compares",
    navigation="Truth ratios",
    lazy_data=lambda context: ratio_data(context.evaluations, context.report.records),
)
