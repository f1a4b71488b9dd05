"""Average: evaluate the mean of the weights of several steps."""

from typing import ClassVar

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import Gradients, Memory, RunStep, WeightEdit


class Average(WeightEdit):
    """Weight averaging: Izmailov et al. 2018, arXiv:1803.05407; Fan et al. 2025, arXiv:2502.05374.

    m = 1/n Σ_i θ(t_i),   t_i = t_1 + (i − 1) k

    m     the weights that are evaluated;  θ(t)  those that are trained, after step t
    t_1   the first step after the share `begin` of the run; before it, θ is evaluated
    k     `every`
    """

    tried: ClassVar = {"begin": 0.2, "every": 1}

    begin: float = setting(
        0.8,
        "share of the run before t_1",
        "OPTML-Group/Unlearn-Smooth@fc655ba: 100 of 125",
        ge=0,
        lt=1,
    )
    every: int = setting(
        5,
        "number of steps between two averaged weights",
        "OPTML-Group/Unlearn-Smooth@fc655ba",
        ge=1,
    )

    def memory(self, weights: Gradients) -> Memory:
        """Return the mean, which begins as the weights."""
        return {"mean": weights.copy()}

    def after(self, weights: Gradients, memory: Memory, step: RunStep) -> None:
        """Add the weights of a step to the mean, if the step is one of t_i."""
        steps_after_first = step.number - int(self.begin * step.steps) - 1  # t − t_1
        if steps_after_first < 0:
            memory["mean"].set_(weights)
        elif steps_after_first % self.every == 0:
            count = steps_after_first // self.every + 1  # i
            share = 1 / count
            memory["mean"].scale_(1 - share).add_(weights, share)

    def evaluated(self, weights: Gradients, memory: Memory) -> Gradients:
        """Return the mean."""
        return memory["mean"]
