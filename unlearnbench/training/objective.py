"""The objective of a run: a method's loss and, where there is one, a weighted retain term."""

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


@dataclass(frozen=True)
class Objective:
    """The loss that a run minimises: a method's, with a retain term if configured."""

    method: Method
    retain: RetainSpec | None = None

    @property
    def needs(self) -> Needs:
        """The needs of both."""
        part = self.method.needed()
        return part if self.retain is None else part | _NEEDS[self.retain.term]

    def terms(self, batch: LossBatch) -> Terms:
        """The loss by term; the sum is minimised.

        Raises: PluginError where the method's loss raises, or is not a scalar with a gradient.
        """
        with called(self.method, "loss"):
            part: Any = self.method.loss(batch)
        terms = _terms(self.method, part)
        if self.retain is not None:
            # The method's own retain term, if any, has another name.
            terms[f"added_{self.retain.term}"] = self.retain.weight * _TERMS[self.retain.term](
                batch
            )
        return terms


def called(plugin: HyperParameters, part: str) -> Any:
    """Wrap a call of a plug-in's `part`, such as a method's loss, for errors that name it."""
    kind = type(plugin)
    return plugin_code(f"`{part}` of {kind.__name__}", source_file(kind))


_RULE = (
    "it must return a scalar tensor with a gradient, such as `mean_tokens` or `mean_sequences`, or "
    "such tensors by name"
)


def _terms(method: Method, part: Any) -> dict[str, Tensor]:
    """The terms of a loss. Raises: PluginError where it is not a valid loss."""
    terms: dict[Any, Any] = dict(part) if isinstance(part, Mapping) else {"loss": part}
    for name, value in terms.items():
        if not isinstance(value, Tensor):
            given = f"{value!r:.60}"
        elif value.is_floating_point() and not value.ndim:
            continue
        else:
            given = f"a tensor of shape {list(value.shape)} and type {value.dtype}"
        raise PluginError(
            f"`loss` of {type(method).__name__} returned {given} as {name!r}; {_RULE}"
        )
    if torch.is_grad_enabled() and not any(value.requires_grad for value in terms.values()):
        raise PluginError(
            f"`loss` of {type(method).__name__} returned a value without a gradient: it was "
            f"detached, computed in `no_grad`, or made a new tensor; {_RULE}"
        )
    return terms
