"""Training, step by step: losses, their terms and gradient norms of every run."""

from typing import Any

from ...figures.curve_plot import steps
from ...report_section import PageContext, Section


class TrainingSteps(Section):
    """Losses and gradient norms by step."""

    name, title, order, folder = "training", "Training", 110, "training_steps"

    def data(self, context: PageContext) -> Any:
        """Draw the figures of each panel."""
        return [
            [*steps(context.records_of(panel), panel.rows, context.style).values()]
            for panel in context.panels
        ]
