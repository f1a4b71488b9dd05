"""Random predictions in float64, the methods as the registry gives them, and words of formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.method import LossBatch, Method, Part, References, Terms
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference

VOCABULARY = 7
LAYER, WIDTH = 2, 5
"""The decoder layer that there are hidden states of, and their size."""
DIRECTION = torch.linspace(-1, 2, WIDTH, dtype=torch.float64)
"""From the end of the forget rows' prompts to the end of others."""
TEXT, PROGRESS = (3, 5), 0.5
"""Tokens of a method's text, and the share of the run that is behind the step."""

PROMPTED: tuple[Callable[[Tensor], Tensor], ...] = (lambda z: 2 * z, lambda z: z / 2)
"""What the start model's logits [T, V] of forget rows become behind a method's prompts."""


@dataclass
class Toy:
    """Parts as plain nested lists of per-token logits: what the formulas in the tests read."""

    logits: Mapping[Part, list[Tensor]]
    """By part and sequence: [T_b, V] leaves that carry gradients."""
    labels: Mapping[Part, list[list[int]]]
    reference: Mapping[Part, list[Tensor]]
    states: Mapping[Part, list[Tensor]] = field(default_factory=dict[Part, list[Tensor]])
    """By part and sequence: [T_b, WIDTH] leaves, the hidden states after `LAYER`."""
    reference_states: Mapping[Part, list[Tensor]] = field(default_factory=dict[Part, list[Tensor]])

    def batch(self) -> LossBatch:
        """The same numbers as a method sees them."""
        parts: dict[Part, Predictions] = {}
        references: dict[Part, Reference] = {}
        for part, sequences in self.logits.items():
            labels = torch.tensor([y for row in self.labels[part] for y in row])
            lengths = torch.tensor([len(row) for row in self.labels[part]])
            rows = torch.arange(len(sequences)).repeat_interleave(lengths)
            z, whole, count = torch.cat(sequences), Projection(None), len(sequences)
            parts[part] = Predictions(
                *(z, whole, labels, rows, count, len(labels), count), _states(self.states, part)
            )
            logits = torch.cat([*self.reference[part]])
            logprob = logits.log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
            states = _states(self.reference_states, part)
            known = Reference(logprob, rows, count, logits, whole, states, {LAYER: DIRECTION})
            references[part] = known
        rewards = None
        if "sample" in parts:
            rewards = torch.linspace(0, 1, len(self.logits["sample"]), dtype=torch.float64)
        return LossBatch(parts, References(references), rewards=rewards)

    def batch_for(self, made: Method) -> LossBatch:
        """Only what `made` needs, with its statistics of the step and its first state."""
        needs, full = made.needed(), self.batch()
        references: dict[Part, Reference] = {}
        for part in needs.reference:
            known = full.reference.parts[part]
            if part not in needs.distributions:
                known = replace(known, hidden=None, projection=None)
            references[part] = known if part in needs.states else replace(known, states={})

        def only(names: Set[Part]) -> LossBatch:
            parts: dict[Part, Predictions] = {}
            for part in names:
                states = full.parts[part].states
                states = {n: s for n, s in states.items() if n in needs.layers}
                places = [place for row in self.labels[part] for place in range(len(row))]
                text = torch.tensor([TEXT[place % len(TEXT)] for place in places])
                part_text = text.long() if needs.text else None
                parts[part] = replace(full.parts[part], states=states, text_tokens=part_text)
            changes = zip(needs.prompts, PROMPTED, strict=False)
            prompted = [
                replace(
                    references["forget"], hidden=torch.cat([*map(change, self.reference["forget"])])
                )
                for _, change in changes
            ]
            return LossBatch(parts, References(references, prompted), rewards=full.rewards)

        with torch.no_grad():
            statistics = made.statistics(only(needs.statistics))
        batch = replace(only(needs.parts), state=made.start(), statistics=statistics)
        return replace(batch, progress=PROGRESS)

    def leaves(self) -> list[Tensor]:
        """Every tensor that a gradient is compared of."""
        sources = (self.logits, self.states)
        return [leaf for source in sources for rows in source.values() for leaf in rows]

    def tokens(self, part: Part) -> list[tuple[Tensor, int, Tensor]]:
        """(logits [V], label, reference logits [V]) of each scored token of `part`."""
        return [token for sequence in self.sequences(part) for token in sequence]

    def sequences(self, part: Part) -> list[list[tuple[Tensor, int, Tensor]]]:
        """The tokens of each sequence of `part`."""
        return [
            [*zip(zs, ys, refs, strict=True)]
            for zs, ys, refs in zip(
                self.logits[part], self.labels[part], self.reference[part], strict=True
            )
        ]

    def sequence_logprobs(self, part: Part, *, reference: bool = False) -> list[Tensor]:
        """Σ_t log p_y of each sequence, token by token."""
        source = self.reference if reference else self.logits
        sums: list[Tensor] = []
        for zs, ys in zip(source[part], self.labels[part], strict=True):
            total = torch.zeros((), dtype=torch.float64)
            for z, y in zip(zs, ys, strict=True):
                total = total + z[y] - torch.log(torch.exp(z).sum())
            sums.append(total)
        return sums

    def log_ratios(self, part: Part) -> list[Tensor]:
        """log π_b / π_ref,b of each sequence."""
        own, reference = (self.sequence_logprobs(part, reference=known) for known in (False, True))
        return [s - ref for s, ref in zip(own, reference, strict=True)]


def _states(source: Mapping[Part, list[Tensor]], part: Part) -> dict[int, Tensor]:
    return {LAYER: torch.cat(source[part])} if part in source else {}


def make_toy(lengths: Mapping[Part, Sequence[int]], seed: int = 0) -> Toy:
    """Random logits of the given sequence lengths."""
    generator = torch.Generator().manual_seed(seed)

    def draw(n: int, width: int = VOCABULARY) -> Tensor:
        return torch.randn(n, width, generator=generator, dtype=torch.float64) * 2

    return Toy(
        {part: [draw(n).requires_grad_() for n in ns] for part, ns in lengths.items()},
        {
            part: [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in ns]
            for part, ns in lengths.items()
        },
        {part: [draw(n) for n in ns] for part, ns in lengths.items()},
        {part: [draw(n, WIDTH).requires_grad_() for n in ns] for part, ns in lengths.items()},
        {part: [draw(n, WIDTH) for n in ns] for part, ns in lengths.items()},
    )


@pytest.fixture
def toy() -> Toy:
    """Three forget rows of unequal length, with their partners, and eight samples of one."""
    lengths: dict[Part, tuple[int, ...]] = {"forget": (4, 1, 3), "retain": (2, 5, 1)}
    lengths |= {"refusal": (2, 2, 3), "alternative": (3, 1, 2), "sample": (1, 2) * 4}
    lengths |= {"whole": (6, 2, 5), "retain_refusal": (1, 3, 2)}
    return make_toy(lengths)


def method(name: str, **hyperparameters: Any) -> Method:
    """A registered method."""
    made = registry.load("methods", name)(**hyperparameters)
    assert isinstance(made, Method)
    return made


def loss_of(toy: Toy, name: str, **hyperparameters: Any) -> Tensor | Terms:
    """The loss of a registered method on all that it needs and no more."""
    made = method(name, **hyperparameters)
    return made.loss(toy.batch_for(made))


def total(loss: Tensor | Terms) -> Tensor:
    """The scalar that is minimised."""
    return loss if isinstance(loss, Tensor) else torch.stack([*loss.values()]).sum()


def gradients(toy: Toy, loss: Tensor | Terms) -> list[Tensor]:
    """Gradients of every leaf."""
    leaves, value = toy.leaves(), total(loss)
    found = torch.autograd.grad(
        value, leaves, allow_unused=True, retain_graph=True, materialize_grads=True
    )
    return list(found)


def assert_same(toy: Toy, loss: Tensor | Terms, formula: Tensor) -> None:
    """Equal in value and in the gradient of every logit and hidden state."""
    value = total(loss)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, formula, rtol=1e-12, atol=1e-12)
    assert_same_gradients(toy, value, formula)


def assert_same_gradients(toy: Toy, loss: Tensor | Terms, formula: Tensor) -> None:
    """Equal in the gradient of every logit and hidden state."""
    for mine, theirs in zip(gradients(toy, loss), gradients(toy, formula), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def nll(z: Tensor, y: int) -> Tensor:
    """−log p_y."""
    return torch.log(torch.exp(z).sum()) - z[y]


def kl(ref: Tensor, z: Tensor) -> Tensor:
    """KL(softmax(ref) ‖ softmax(z))."""
    p_ref = torch.softmax(ref, 0)
    return (p_ref * (torch.log(p_ref) - torch.log(torch.softmax(z, 0)))).sum()


def ce_towards(target: Tensor, z: Tensor) -> Tensor:
    """Cross entropy against a fixed distribution."""
    log_p = z - torch.log(torch.exp(z).sum())
    return -(target.detach() * log_p).sum()


def unlearning_target(z: Tensor, y: int) -> Tensor:
    """The CE-U paper's words: softmax of the detached logits with the true one at −inf."""
    others = z.detach().clone()
    others[y] = -math.inf
    return torch.softmax(others, 0)


def mean(values: Sequence[Tensor]) -> Tensor:
    """Arithmetic."""
    return torch.stack([*values]).sum() / len(values)
