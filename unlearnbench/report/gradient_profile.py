"""The gradient of a loss with respect to a forget token's logits, by the token's probability.

The batch has one forget row of one token in a fixed random context. The logits z_v of all other
tokens are constant. z_y varies so that p_y goes from 10⁻⁶ to 1 − 10⁻⁶ in equal steps of log-odds.
Every other part that a method reads is one constant row of one token. A loss that is a mean over
several parts shares its weight between them.

The start model has the same other logits, and p_y = `reference` or the policy's p_y. The setting
`ignore_first_answer_tokens` applies to whole rows, and is not used here.
"""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.method import LossBatch, Method, Part, References
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference

POINTS = 81
"""Number of points of a curve."""
LOWEST = 1e-6
"""Lowest p_y of a curve. The highest is 1 - LOWEST."""
START = 0.99
"""Default p_y of the start model: a memorised answer."""
_VOCABULARY = 64
"""Number of logits V."""
_WIDTH = 8
"""Width of hidden states."""
_PLAIN = Projection(None)
"""The hidden states that losses get are the logits themselves."""


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
        """Write a row for each method and point."""
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
    """Compute the curves of methods.

    Args:
        methods: Methods by name.
        reference: p_y of the start model. None means the policy's.
    """
    curves: dict[str, tuple[Point, ...]] = {}
    without: dict[str, str] = {}
    for name, method in methods.items():
        try:
            curve = _curve(method, reference)
        except Exception as error:
            # A plug-in may raise anything. The other methods still get their curves.
            curve = f"raised {type(error).__name__}: {error}; see `methods check {name}`"
        if isinstance(curve, str):
            without[name] = curve
        else:
            curves[name] = curve
    return GradientProfiles(curves, without, reference)


def _curve(method: Method | Wrapper, reference: float | None) -> tuple[Point, ...] | str:
    """Return the points of a method, or the reason why there are none."""
    if isinstance(method, Wrapper):
        return "trains nothing"
    parts = method.needed().parts
    if "forget" not in parts:
        return f"does not read the forgotten answers, only {', '.join(sorted(parts))}"
    highest_odds = math.log((1 - LOWEST) / LOWEST)
    points: list[Point] = []
    for number in range(POINTS):
        odds = highest_odds * (2 * number / (POINTS - 1) - 1)
        start_odds = odds if reference is None else math.log(reference / (1 - reference))
        gradient = _gradient(method, _batch(method, odds, start_odds))
        if gradient is None:
            return "does not read the logits of the forgotten answers"
        of_other_tokens = gradient[0, 1:]
        points.append(
            Point(
                probability=1 / (1 + math.exp(-odds)),
                log_odds=odds,
                norm=float(gradient.norm()),
                true=float(gradient[0, 0]),
                other=float(of_other_tokens[of_other_tokens.abs().argmax()]),
            )
        )
    return tuple(points)


def _gradient(method: Method, batch: LossBatch) -> Tensor | None:
    """Return ∂L/∂z [1, V] of the forget token; None if the loss does not depend on its logits."""
    loss = _loss(method, batch)
    # A loss that reads only hidden states has no graph here.
    if not loss.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(loss, batch.forget.hidden, allow_unused=True)
    return gradient


def _loss(method: Method, batch: LossBatch) -> Tensor:
    """Compute the loss of a batch, which is the sum of its terms."""
    if method.needed().statistics:
        # Parts keep what was computed from them. Statistics are computed without a graph, so they
        # get copies of the parts.
        parts = {name: replace(part) for name, part in batch.parts.items()}
        with torch.no_grad():
            statistics = method.statistics(replace(batch, parts=parts))
        batch = replace(batch, statistics=statistics)
    loss = method.loss(batch)
    return loss if isinstance(loss, Tensor) else torch.stack([*loss.values()]).sum()


def _batch(method: Method, odds: float, start: float) -> LossBatch:
    """Make the batch. Token 0 is the true one in all parts.

    Args:
        method: The method, whose needs decide what the batch has.
        odds: Log-odds of the forget token.
        start: Log-odds of the forget token by the start model.
    """
    needs = method.needed()
    generator = torch.Generator().manual_seed(0)
    others = 2 * torch.randn(_VOCABULARY - 1, generator=generator, dtype=torch.float64)
    parts: dict[Part, Predictions] = {}
    references: dict[Part, Reference] = {}
    for part in sorted(needs.all_parts):
        count = needs.samples.count if part == "sample" and needs.samples else 1
        rows = torch.arange(count)
        labels = torch.zeros(count, dtype=torch.long)
        # All other parts have p_y = 1/2.
        part_odds, part_start = (odds, start) if part == "forget" else (0.0, 0.0)
        logits = _logits(others, part_odds).repeat(count, 1).requires_grad_()
        states = {
            layer: torch.randn(count, _WIDTH, generator=generator, dtype=torch.float64)
            for layer in sorted(needs.layers)
        }
        # Half learned, half unlearned: the curve of a token whose score is in the middle.
        scores = torch.full((count,), 0.5).double() if part in needs.scores else None
        # The text is another token than the true one.
        text = labels + 1 if needs.text else None
        parts[part] = Predictions(
            logits, _PLAIN, labels, rows, count, count, count, states, scores, text
        )
        if part in needs.reference:
            logprob = logsigmoid(torch.full((count,), part_start, dtype=torch.float64))
            start_logits = _logits(others, part_start).repeat(count, 1)
            directions = {layer: state[0] for layer, state in states.items()}
            references[part] = Reference(
                logprob, rows, count, start_logits, _PLAIN, states, directions
            )
    # After the first prompt the start model knows the token better, after the next one worse.
    prompted = [
        replace(references["forget"], hidden=_logits(others, start + (-1) ** number))
        for number in range(len(needs.prompts))
    ]
    rewards: Tensor | None = None
    if "sample" in parts:
        rewards = torch.linspace(0, 1, len(parts["sample"].labels), dtype=torch.float64)
    return LossBatch(parts, References(references, prompted), method.start(), rewards=rewards)


def _logits(others: Tensor, odds: float) -> Tensor:
    """Return logits [1, V] that give the first token these log-odds.

    p_y / (1 - p_y) = exp(z_y) / ∑_v exp(z_v), so z_y = log-odds + log ∑_v exp(z_v).
    """
    true = odds + others.logsumexp(0)
    return torch.cat([true.reshape(1), others]).unsqueeze(0)
