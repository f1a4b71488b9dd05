"""The sections of the page, in their order; each is a folder with data, template and script."""

from ..report_section import ReportSection
from . import (
    all_numbers,
    answers,
    best_settings,
    conclusion,
    curves,
    failures,
    lasting,
    order_confidence,
    provenance,
    scorecard,
    sensitivity,
    tradeoff,
    training_steps,
    truth_ratios,
)

SECTIONS: tuple[ReportSection, ...] = (
    tradeoff.SECTION,
    conclusion.SECTION,
    scorecard.SECTION,
    best_settings.SECTION,
    order_confidence.SECTION,
    lasting.SECTION,
    sensitivity.SECTION,
    curves.SECTION,
    truth_ratios.SECTION,
    answers.SECTION,
    training_steps.SECTION,
    all_numbers.SECTION,
    failures.SECTION,
    provenance.SECTION,
)
