"""NGDiff: give both gradients the same norm."""

from unlearnbench.api.modifier import ByRole, Combine, Gradients, Memory, RunStep


class NGDiff(Combine):
    """Normalised gradient difference: Bu et al. 2025, arXiv:2410.22086.

    g = f / ‖f‖ + r / ‖r‖

    f, r   gradients of the forget and of the retain loss, whose weights do not matter

    The paper subtracts the gradient of the forgotten answers' negative log-likelihood. The method
    `gradient-difference` has minus this gradient as f, so the rule here is the rule of the paper.
    The paper also chooses the learning rate by finite differences. This is not available here, and
    a run uses the stated rate.
    """

    def combine(self, gradients: ByRole, memory: Memory, step: RunStep) -> Gradients:
        """Return the sum of both gradients, each of norm 1."""
        return gradients["forget"].unit().add_(gradients["retain"].unit())
