"""The gradient of a loss with respect to a forget token's logits, by the token's probability.

One forget row of one token, in a fixed random context: the other logits z_v are constant, and z_y
varies so that p_y goes from 10⁻⁶ to 1 − 10⁻⁶ in equal steps of log-odds. Every other part that a
method reads is one constant row of one token; a mean over several parts shares its weight between
them. The start model has the same other logits, and p_y = `reference`, or the policy's p_y.
`ignore_first_answer_tokens` applies to rows, and is not used here.

`cosines` compares the gradients of methods with respect to the weights, on one batch.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.method import LossBatch, Method, Part, References
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference
from unlearnbench.testing.tiny_lab import TinyLab

POINTS, LOWEST = 81, 1e-6
START = 0.99
"""Default p_y of the start model: a memorised answer."""
_VOCABULARY, _WIDTH = 64, 8
_PLAIN = Projection(None)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Point:
    """The gradient at one probability of the true token."""

    probability: float
    log_odds: float
    norm: float
    """‖∂L/∂z‖₂"""
    true: float
    """∂L/∂z_y: above 0 the true logit is pushed down."""
    other: float
    """The component of ∂L/∂z at v ≠ y that is largest in magnitude."""


@dataclass(frozen=True)
class GradientProfiles:
    """The gradient curves of several methods."""

    curves: Mapping[str, tuple[Point, ...]]
    without: Mapping[str, str]
    """Methods without a curve, each with the reason."""
    reference: float | None
    """p_y of the start model; None means the policy's."""

    def to_csv(self) -> str:
        """A row for each method and point."""
        columns = ("method", "probability", "log_odds", "norm", "true_component", "largest_other")
        rows = [(name, *astuple(p)) for name, points in self.curves.items() for p in points]
        return _csv(columns, rows)


@dataclass(frozen=True)
class Cosines:
    """Cosines between the gradients of methods; None if one of the two is zero."""

    names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    without: Mapping[str, str]

    def to_csv(self) -> str:
        """The matrix, with a row and a column for each method."""
        rows = [(name, *line) for name, line in zip(self.names, self.values, strict=True)]
        return _csv(("method", *self.names), rows)


def gradient_profiles(
    methods: Mapping[str, Method | Wrapper], reference: float | None = START
) -> GradientProfiles:
    """Compute the curves of `methods`; `reference` is p_y of the start model, None the policy's."""
    curves, without = _each(methods, lambda method: _curve(method, reference))
    return GradientProfiles(curves, without, reference)


class _NothingError(Exception):
    """A method has no curve or gradient, for the reason in the message."""


def _each(
    methods: Mapping[str, Method | Wrapper], compute: Callable[[Method], _T]
) -> tuple[dict[str, _T], dict[str, str]]:
    """Compute something for each method; returns it by name, and why others have nothing."""
    result: dict[str, _T] = {}
    without: dict[str, str] = {}
    for name, method in methods.items():
        try:
            if isinstance(method, Wrapper):
                raise _NothingError("trains nothing")
            result[name] = compute(method)
        except _NothingError as reason:
            without[name] = str(reason)
        except Exception as error:  # a plug-in may raise anything; it becomes a reason
            without[name] = f"raised {type(error).__name__}: {error}; see `methods check {name}`"
    return result, without


def _curve(method: Method, reference: float | None) -> tuple[Point, ...]:
    parts = method.needed().parts
    if "forget" not in parts:
        names = ", ".join(sorted(parts))
        raise _NothingError(f"does not read the forgotten answers, only {names}")
    batch, logits = _batch(method, 0.0, 0.0)
    loss = _loss(method, batch)
    read = torch.autograd.grad(loss, logits, allow_unused=True)[0] if loss.requires_grad else None
    if read is None:
        raise _NothingError("does not read the logits of the forgotten answers")
    end = math.log((1 - LOWEST) / LOWEST)
    points: list[Point] = []
    for i in range(POINTS):
        odds = end * (2 * i / (POINTS - 1) - 1)
        start = odds if reference is None else math.log(reference / (1 - reference))
        batch, logits = _batch(method, odds, start)
        (slope,) = torch.autograd.grad(_loss(method, batch), logits)
        others = slope[0, 1:]
        points.append(
            Point(
                1 / (1 + math.exp(-odds)),
                odds,
                float(slope.norm()),
                float(slope[0, 0]),
                float(others[others.abs().argmax()]),
            )
        )
    return tuple(points)


def _loss(method: Method, batch: LossBatch) -> Tensor:
    if method.needed().statistics:
        with torch.no_grad():
            batch = replace(batch, statistics=method.statistics(batch))
    loss = method.loss(batch)
    return loss if isinstance(loss, Tensor) else torch.stack([*loss.values()]).sum()


def _batch(method: Method, odds: float, start: float) -> tuple[LossBatch, Tensor]:
    """The batch, and the forget token's logits [1, V], whose entry 0 is the true one."""
    needs, generator = method.needed(), torch.Generator().manual_seed(0)
    others = 2 * torch.randn(_VOCABULARY - 1, generator=generator, dtype=torch.float64)
    parts: dict[Part, Predictions] = {}
    references: dict[Part, Reference] = {}
    for part in sorted(needs.parts | needs.statistics):
        count = needs.samples.count if part == "sample" and needs.samples else 1
        rows, labels = torch.arange(count), torch.zeros(count, dtype=torch.long)
        subset, base = (odds, start) if part == "forget" else (0.0, 0.0)
        logits = _logits(others, subset).repeat(count, 1).requires_grad_()
        states = {
            layer: torch.randn(count, _WIDTH, generator=generator, dtype=torch.float64)
            for layer in sorted(needs.layers)
        }
        # Half learned, half unlearned: the curve of a token whose score is in the middle.
        scores = torch.full((count,), 0.5).double() if part in needs.scores else None
        parts[part] = Predictions(logits, _PLAIN, labels, rows, count, count, count, states, scores)
        if part in needs.reference:
            logprob = logsigmoid(torch.full((count,), base, dtype=torch.float64))
            start_logits = _logits(others, base).repeat(count, 1)
            references[part] = Reference(logprob, rows, count, start_logits, _PLAIN, states)
    rewards = None
    if "sample" in parts:
        rewards = torch.linspace(0, 1, len(parts["sample"].labels), dtype=torch.float64)
    batch = LossBatch(parts, References(references), method.start(), rewards=rewards)
    return batch, parts["forget"].hidden if "forget" in parts else others


def _logits(others: Tensor, odds: float) -> Tensor:
    return torch.cat([(odds + others.logsumexp(0)).reshape(1), others]).unsqueeze(0)


def cosines(methods: Mapping[str, Method | Wrapper]) -> Cosines:
    """Cosines between the methods' first steps, on one batch, from a small model trained here.

    Retain terms are included; weights that a method does not train are zero. The gradient of a
    method that reverses its update at evaluation is reversed here as well.
    """
    layers = [max(m.needed().layers, default=0) for m in methods.values() if isinstance(m, Method)]
    depth = max(layers, default=0) + 1
    gradients, without = _each(methods, lambda method: _gradient(method, depth))
    values = tuple(tuple(_cosine(a, b) for b in gradients.values()) for a in gradients.values())
    return Cosines(tuple(gradients), values, without)


def _gradient(method: Method, depth: int) -> Tensor:
    lab = TinyLab(method, depth=depth)
    result = lab.measure(model=lab.start).gradients
    layers = lab.start.config.num_hidden_layers
    trained = [g if method.trains(n, layers) else torch.zeros_like(g) for n, g in result.items()]
    return torch.cat([g.flatten() for g in trained]) * method.update_scale()


def _cosine(a: Tensor, b: Tensor) -> float | None:
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size else None


def _csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()
