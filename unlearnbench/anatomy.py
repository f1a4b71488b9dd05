"""What a loss does to the logits of a forgotten token, against how likely that token is.

One forget row of one token, in a fixed random context: the other logits z_v stand still, and z_y
moves so that p_y goes from 10⁻⁶ to 1 − 10⁻⁶ in equal steps of log-odds. Whatever else a method
reads is one row of one token as well, and stands still; so a mean over several parts shares its
weight between them. The start model has the same other logits and a p_y of its own, `reference`,
or always the policy's. `ignore_first_answer_tokens` is about rows, and not applied.

`cosines` asks how alike the gradients of methods are where it counts: in the weights, on one batch.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from unlearnbench.losses import Predictions, Reference
from unlearnbench.method import LossBatch, Method, Part, References, Wrapper
from unlearnbench.outputs import spreadsheet_cell
from unlearnbench.projection import Projection
from unlearnbench.testing.laboratory import Laboratory

POINTS, LOWEST = 81, 1e-6
START = 0.99
"""p_y of the start model where nobody has said: a memorised answer."""
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
    """The component of ∂L/∂z beside y that is largest in magnitude."""


@dataclass(frozen=True)
class Anatomy:
    """The curves of several methods."""

    curves: Mapping[str, tuple[Point, ...]]
    without: Mapping[str, str]
    """By method without a curve, why there is none."""
    reference: float | None
    """p_y of the start model; None: the policy's."""

    def to_csv(self) -> str:
        """A row for each method and point."""
        columns = ("method", "probability", "log_odds", "norm", "true_component", "largest_other")
        rows = [
            (name, p.probability, p.log_odds, p.norm, p.true, p.other)
            for name, points in self.curves.items()
            for p in points
        ]
        return _csv(columns, rows)


@dataclass(frozen=True)
class Cosines:
    """How alike methods' gradients are; None where one of the two is zero."""

    names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    without: Mapping[str, str]

    def to_csv(self) -> str:
        """The matrix, with a row and a column for each method."""
        rows = [(name, *line) for name, line in zip(self.names, self.values, strict=True)]
        return _csv(("method", *self.names), rows)


def anatomy(methods: Mapping[str, Method | Wrapper], reference: float | None = START) -> Anatomy:
    """The curves of `methods`; `reference` is p_y of the start model, None the policy's own."""
    curves: dict[str, tuple[Point, ...]] = {}
    without: dict[str, str] = {}
    for name, method in methods.items():
        if isinstance(method, Wrapper):
            without[name] = "trains nothing"
            continue
        try:
            reason = _reason(method)
            if not reason:
                curves[name] = _curve(method, reference)
        except Exception as error:  # whatever a stranger's method does
            reason = f"raised {type(error).__name__}: {error}; see `methods check {name}`"
        if reason:
            without[name] = reason
    return Anatomy(curves, without, reference)


def _reason(method: Method) -> str:
    parts = method.needed().parts
    if "forget" not in parts:
        return f"does not read the forgotten answers, only {', '.join(sorted(parts))}"
    batch, logits = _batch(method, 0.0, 0.0)
    loss = _loss(method, batch)
    read = torch.autograd.grad(loss, logits, allow_unused=True)[0] if loss.requires_grad else None
    return "" if read is not None else "does not read the logits of the forgotten answers"


def _curve(method: Method, reference: float | None) -> tuple[Point, ...]:
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
    found = method.loss(batch)
    return found if isinstance(found, Tensor) else torch.stack([*found.values()]).sum()


def _batch(method: Method, odds: float, start: float) -> tuple[LossBatch, Tensor]:
    """The batch, and the forget token's logits [1, V], whose entry 0 is the true one."""
    needs, generator = method.needed(), torch.Generator().manual_seed(0)
    others = 2 * torch.randn(_VOCABULARY - 1, generator=generator, dtype=torch.float64)
    parts: dict[Part, Predictions] = {}
    references: dict[Part, Reference] = {}
    for part in sorted(needs.parts | needs.statistics):
        count = needs.samples.count if part == "sample" and needs.samples else 1
        rows, labels = torch.arange(count), torch.zeros(count, dtype=torch.long)
        own, known = (odds, start) if part == "forget" else (0.0, 0.0)
        logits = _logits(others, own).repeat(count, 1).requires_grad_()
        states = {
            layer: torch.randn(count, _WIDTH, generator=generator, dtype=torch.float64)
            for layer in sorted(needs.layers)
        }
        # Half learned, half unlearned: the curve of a token whose score is in the middle.
        scores = torch.full((count,), 0.5).double() if part in needs.scores else None
        parts[part] = Predictions(logits, _PLAIN, labels, rows, count, count, count, states, scores)
        if part in needs.reference:
            logprob = logsigmoid(torch.full((count,), known, dtype=torch.float64))
            told = _logits(others, known).repeat(count, 1)
            references[part] = Reference(logprob, rows, count, told, _PLAIN, states)
    rewards = None
    if "sample" in parts:
        rewards = torch.linspace(0, 1, len(parts["sample"].labels), dtype=torch.float64)
    batch = LossBatch(parts, References(references), method.start(), rewards=rewards)
    return batch, parts["forget"].hidden if "forget" in parts else others


def _logits(others: Tensor, odds: float) -> Tensor:
    return torch.cat([(odds + others.logsumexp(0)).reshape(1), others]).unsqueeze(0)


def cosines(methods: Mapping[str, Method | Wrapper]) -> Cosines:
    """How alike the methods' first steps are: on one batch, from a small model trained here.

    Retain terms count, and weights that a method does not train do not. A method whose update is
    reversed when the model is evaluated points where the evaluated model goes.
    """
    trained = {name: m for name, m in methods.items() if isinstance(m, Method)}
    without = {name: "trains nothing" for name in methods if name not in trained}
    depth = max((max(m.needed().layers, default=0) for m in trained.values()), default=0) + 1
    gradients: dict[str, Tensor] = {}
    for name, method in trained.items():
        try:
            gradients[name] = _gradient(method, depth)
        except Exception as error:  # whatever a stranger's method does
            without[name] = f"raised {type(error).__name__}: {error}; see `methods check {name}`"
    values = tuple(tuple(_cosine(a, b) for b in gradients.values()) for a in gradients.values())
    return Cosines(tuple(gradients), values, without)


def _gradient(method: Method, depth: int) -> Tensor:
    lab = Laboratory(method, depth=depth)
    found = lab.measure(model=lab.start).gradients
    layers = lab.start.config.num_hidden_layers
    kept = [g if method.trains(n, layers) else torch.zeros_like(g) for n, g in found.items()]
    return torch.cat([g.flatten() for g in kept]) * method.update_scale()


def _cosine(a: Tensor, b: Tensor) -> float | None:
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size else None


def _csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([columns, *([spreadsheet_cell(v) for v in row] for row in rows)])
    return text.getvalue()
