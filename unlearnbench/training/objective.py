"""The objective of a run: a method's loss, and a weighted retain term if the run adds one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.method import LossBatch, Method, Needs, Part, Terms
from unlearnbench.api.plugin_code import plugin_code, source_file
from unlearnbench.api.retain_terms import retain_kl, retain_nll
from unlearnbench.base.errors import PluginError
from unlearnbench.config.schema import RetainSpec, RetainTermName

_RETAIN: frozenset[Part] = frozenset({"retain"})
_TERMS = {"nll": retain_nll, "kl": retain_kl}
_NEEDS: dict[RetainTermName, Needs] = {
    "nll": Needs(parts=_RETAIN),
    "kl": Needs(parts=_RETAIN, distributions=_RETAIN),
}
_RULE = (
    "it must return a scalar tensor with a gradient, such as `mean_tokens` or `mean_sequences`, or "
    "such tensors by name"
)


@dataclass(frozen=True)
class Objective:
    """The loss that a run minimises.

    Attributes:
        method: The method of the run.
        retain: The retain term that the run adds to the method's loss. None: no term.
    """

    method: Method
    retain: RetainSpec | None = None

    @property
    def needs(self) -> Needs:
        """The inputs of the whole loss."""
        needs = self.method.needed()
        return needs if self.retain is None else needs | _NEEDS[self.retain.term]

    def terms(self, batch: LossBatch) -> Terms:
        """Compute the loss by term. The sum of the terms is minimised.

        Raises:
            PluginError: The method's loss raises an exception, or returns something else than
                scalars with a gradient.
        """
        with called(self.method, "loss"):
            returned: Any = self.method.loss(batch)
        terms = _terms(self.method, returned)
        if self.retain is not None:
            added = _TERMS[self.retain.term](batch)
            # The method's own retain term, if it has one, has another name.
            terms[f"added_{self.retain.term}"] = self.retain.weight * added
        return terms


def called(plugin: HyperParameters, function: str) -> Any:
    """Return a context that turns exceptions of a plug-in's function into a PluginError.

    Args:
        plugin: The plug-in, such as a method.
        function: Name of the function, such as `loss`.
    """
    kind = type(plugin)
    return plugin_code(f"`{function}` of {kind.__name__}", source_file(kind))


def _terms(method: Method, returned: Any) -> dict[str, Tensor]:
    """Return the terms of a loss by name.

    Args:
        method: The method.
        returned: What its loss has returned: a scalar, or scalars by name.

    Raises:
        PluginError: It is not a valid loss.
    """
    terms: dict[Any, Any] = dict(returned) if isinstance(returned, Mapping) else {"loss": returned}
    for name, value in terms.items():
        fault = _fault_of_term(value)
        if fault is not None:
            raise PluginError(
                f"`loss` of {type(method).__name__} returned {fault} as {name!r}; {_RULE}"
            )
    if torch.is_grad_enabled() and not any(value.requires_grad for value in terms.values()):
        raise PluginError(
            f"`loss` of {type(method).__name__} returned a value without a gradient: it was "
            f"detached, computed in `no_grad`, or made a new tensor; {_RULE}"
        )
    return terms


def _fault_of_term(value: Any) -> str | None:
    """Describe a value that is no scalar of floating point. None: the value is a valid term."""
    if not isinstance(value, Tensor):
        return f"{value!r:.60}"
    is_scalar = value.ndim == 0
    if value.is_floating_point() and is_scalar:
        return None
    return f"a tensor of shape {list(value.shape)} and type {value.dtype}"
