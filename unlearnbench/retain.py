"""Retain terms: what any method can be given beside its own loss, with a weight.

Gradient difference is gradient ascent with `nll`, KL minimisation is gradient ascent with `kl`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unlearnbench.errors import PluginError
from unlearnbench.method import LossBatch, Method, Needs, Part, Terms
from unlearnbench.plugin_code import plugin_code
from unlearnbench.settings import RetainSpec, RetainTermName


def retain_nll(batch: LossBatch) -> Tensor:
    """Mean negative log-likelihood of the retain rows' answer tokens."""
    return batch.retain.mean_tokens(batch.retain.cross_entropy())


def retain_kl(batch: LossBatch) -> Tensor:
    """Mean KL(p_ref ‖ p) over the retain rows' answer tokens."""
    return batch.retain.mean_tokens(batch.retain.kl_from(batch.reference.retain))


_RETAIN: frozenset[Part] = frozenset({"retain"})
_TERMS = {"nll": retain_nll, "kl": retain_kl}
_NEEDS: dict[RetainTermName, Needs] = {
    "nll": Needs(parts=_RETAIN),
    "kl": Needs(parts=_RETAIN, distributions=_RETAIN),
}


@dataclass(frozen=True)
class Objective:
    """A method and, where one was asked for, a retain term: what a run minimises."""

    method: Method
    retain: RetainSpec | None = None

    @property
    def needs(self) -> Needs:
        """The needs of both."""
        own = self.method.needed()
        return own if self.retain is None else own | _NEEDS[self.retain.term]

    def terms(self, batch: LossBatch) -> Terms:
        """The loss by term; the sum is minimised.

        Raises: PluginError where the method's loss raises, or is no scalar with a gradient.
        """
        with called(self.method, "loss"):
            own: Any = self.method.loss(batch)
        terms = _terms(self.method, own)
        if self.retain is not None:
            # A method that has a retain term of its own keeps it under its own name.
            terms[f"added_{self.retain.term}"] = self.retain.weight * _TERMS[self.retain.term](
                batch
            )
        return terms


def called(method: Method, part: str) -> Any:
    """A guard around a call of the method's `part`, such as its loss."""
    kind = type(method)
    return plugin_code(f"`{part}` of {kind.__name__}", source_file(kind))


def source_file(kind: type[Any]) -> str:
    """The file that defines a class; nothing for one made in a notebook."""
    try:
        return inspect.getfile(kind)
    except (TypeError, OSError):
        return ""


_RULE = "it must return a scalar tensor with a gradient, or such tensors by name"


def _terms(method: Method, own: Any) -> dict[str, Tensor]:
    """The terms of a loss. Raises: PluginError where it is not what a loss is."""
    where = f"`loss` of {type(method).__name__}"
    terms: dict[Any, Any] = dict(own) if isinstance(own, Mapping) else {"loss": own}
    if not terms:
        raise PluginError(f"{where} returned a mapping without terms; {_RULE}")
    for name, value in terms.items():
        of = where if not isinstance(own, Mapping) else f"the term {name!r} of {where}"
        if not isinstance(value, Tensor):
            got = "None (is a `return` missing?)" if value is None else f"the {_kind(value)}"
            raise PluginError(f"{of} returned {got}; {_RULE}")
        if value.ndim:
            raise PluginError(
                f"{of} returned a tensor of shape {list(value.shape)}; {_RULE}: reduce it with "
                "`mean_tokens` or `mean_sequences`"
            )
        if not value.is_floating_point():
            raise PluginError(f"{of} returned a tensor of {value.dtype}; {_RULE}")
    if torch.is_grad_enabled() and not any(value.requires_grad for value in terms.values()):
        raise PluginError(
            f"{where} returned a value without a gradient: it was detached, computed in "
            f"`no_grad`, or made a new tensor; {_RULE}"
        )
    return terms


def _kind(value: Any) -> str:
    """`float 0.5`, `list`."""
    plain = isinstance(value, bool | int | float)
    return f"{type(value).__name__} {value}" if plain else type(value).__name__
