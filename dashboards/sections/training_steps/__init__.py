"""Training, step by step: losses, their terms and gradient norms of every run."""

from typing import Any

from ...figures.curve_plot import steps
from ...figures.marks import Figure
from ...report_section import PageContext, Section


class TrainingSteps(Section):
    """Losses and gradient norms by step."""

    name, title, order, folder = "training", "Training", 110, "training_steps"

    def data(self, context: PageContext) -> Any:
        """Draw the figures of each panel."""
        figures: list[list[Figure]] = []
        for panel in context.panels:
            settings = [item.setting for item in panel.best if item.setting is not None]
            best = {row.run_id for setting in settings for row in setting.rows}
            drawn = steps(context.records_of(panel), panel.rows, context.style, best)
            figures.append([*drawn.values()])
        return figures
