"""The gradient of a loss with respect to a forget token's logits, by the token's probability.

One forget row of one token, in a fixed random context: the other logits z_v are constant, and z_y
varies so that p_y goes from 10⁻⁶ to 1 − 10⁻⁶ in equal steps of log-odds. Every other part that a
method reads is one constant row of one token; a mean over several parts shares its weight between
them. The start model has the same other logits, and p_y = `reference`, or the policy's p_y.
`ignore_first_answer_tokens` applies to rows, and is not used here.
"""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.method import LossBatch, Method, Part, References
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference

POINTS, LOWEST = 81, 1e-6
START = 0.99
"""Default p_y of the start model: a memorised answer."""
_VOCABULARY, _WIDTH = 64, 8
_PLAIN = Projection(None)


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
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(
            ("method", "probability", "log_odds", "norm", "true_component", "largest_other")
        )
        for name, points in self.curves.items():
            table.writerows((name, *astuple(point)) for point in points)
        return text.getvalue()


def gradient_profiles(
    methods: Mapping[str, Method | Wrapper], reference: float | None = START
) -> GradientProfiles:
    """Compute the curves of `methods`; `reference` is p_y of the start model, None the policy's."""
    curves: dict[str, tuple[Point, ...]] = {}
    without: dict[str, str] = {}
    for name, method in methods.items():
        try:
            curve = _curve(method, reference)
        except Exception as error:  # a plug-in may raise anything; it becomes a reason
            curve = f"raised {type(error).__name__}: {error}; see `methods check {name}`"
        if isinstance(curve, str):
            without[name] = curve
        else:
            curves[name] = curve
    return GradientProfiles(curves, without, reference)


def _curve(method: Method | Wrapper, reference: float | None) -> tuple[Point, ...] | str:
    """The points of a method, or the reason why there are none."""
    if isinstance(method, Wrapper):
        return "trains nothing"
    parts = method.needed().parts
    if "forget" not in parts:
        return f"does not read the forgotten answers, only {', '.join(sorted(parts))}"
    end = math.log((1 - LOWEST) / LOWEST)
    points: list[Point] = []
    for i in range(POINTS):
        odds = end * (2 * i / (POINTS - 1) - 1)
        start = odds if reference is None else math.log(reference / (1 - reference))
        batch = _batch(method, odds, start)
        loss, logits = _loss(method, batch), batch.forget.hidden
        slope: Any = None
        if loss.requires_grad:  # that of hidden states alone has no gradient here
            slope = torch.autograd.grad(loss, logits, allow_unused=True)[0]
        if slope is None:
            return "does not read the logits of the forgotten answers"
        true, others = float(slope[0, 0]), slope[0, 1:]
        other = float(others[others.abs().argmax()])
        points.append(Point(1 / (1 + math.exp(-odds)), odds, float(slope.norm()), true, other))
    return tuple(points)


def _loss(method: Method, batch: LossBatch) -> Tensor:
    if method.needed().statistics:
        # Of parts of their own, which keep what is computed from them without a graph.
        parts = {name: replace(part) for name, part in batch.parts.items()}
        with torch.no_grad():
            statistics = method.statistics(replace(batch, parts=parts))
        batch = replace(batch, statistics=statistics)
    loss = method.loss(batch)
    return loss if isinstance(loss, Tensor) else torch.stack([*loss.values()]).sum()


def _batch(method: Method, odds: float, start: float) -> LossBatch:
    """The batch; entry 0 of the forget token's logits [1, V] is the true one."""
    needs, generator = method.needed(), torch.Generator().manual_seed(0)
    others = 2 * torch.randn(_VOCABULARY - 1, generator=generator, dtype=torch.float64)
    parts: dict[Part, Predictions] = {}
    references: dict[Part, Reference] = {}
    for part in sorted(needs.all_parts):
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
        text = labels + 1 if needs.text else None  # another token than the true one
        parts[part] = Predictions(
            logits, _PLAIN, labels, rows, count, count, count, states, scores, text
        )
        if part in needs.reference:
            logprob = logsigmoid(torch.full((count,), base, dtype=torch.float64))
            start_logits = _logits(others, base).repeat(count, 1)
            directions = {layer: state[0] for layer, state in states.items()}
            references[part] = Reference(
                logprob, rows, count, start_logits, _PLAIN, states, directions
            )
    # Behind the first prompt the start model knows the token better, behind the next one worse.
    prompted = [
        replace(references["forget"], hidden=_logits(others, start + (-1) ** i))
        for i in range(len(needs.prompts))
    ]
    samples = parts.get("sample")
    rewards = (
        None if samples is None else torch.linspace(0, 1, len(samples.labels), dtype=torch.float64)
    )
    return LossBatch(parts, References(references, prompted), method.start(), rewards=rewards)


def _logits(others: Tensor, odds: float) -> Tensor:
    return torch.cat([(odds + others.logsumexp(0)).reshape(1), others]).unsqueeze(0)
