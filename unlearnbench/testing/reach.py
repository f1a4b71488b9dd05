"""Checks that everything declared has an effect: parts, tokens, references, and their balance.

A loss may leave out a token depending on its prediction (a hinge, the k likeliest), so every token
is probed under several predictions; it is a fault only if none of them gives it a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from unlearnbench.api.method import LossBatch, Part, References
from unlearnbench.losses.predictions import Predictions, Reference
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed
from unlearnbench.testing.free_logits import Token, freed, slopes
from unlearnbench.testing.invariance import NEAR
from unlearnbench.testing.tiny_lab import TinyLab

_DRAWS = 6
_MOVED = 3.0
"""Added to logits: p = 0.5 becomes 0.95 or 0.05."""
_T = TypeVar("_T", Predictions, Reference)


@check(
    "parts",
    why="A part without a gradient costs a forward pass and trains nothing: a retain term that "
    "is detached, or weighed by 0, looks like one that works.",
    fix="Leave the part out of `needs`, or find where its gradient is lost (`detach`, `no_grad`).",
)
def parts(lab: TinyLab) -> Outcome:
    """Every declared part has a gradient."""
    reached = _reached(lab)
    dead = [repr(part) for part, tokens in reached.items() if not bool(tokens.any())]
    seen = f"no gradient ever reaches {' and '.join(dead)}"
    return fault(seen) if dead else passed(f"{', '.join(reached)} under {_DRAWS + 3} predictions")


@check(
    "tokens",
    why="Answers are scored token by token; a slice or a mask that leaves some out unlearns less "
    "than the answer, and the loss does not show it.",
    fix="Do not slice or mask tokens; the first ones are left out by `ignore_first_answer_tokens`.",
)
def tokens(lab: TinyLab) -> Outcome:
    """Every scored token has a gradient."""
    batch, counted = lab.batch(), 0
    for part, reached in _reached(lab).items():
        dead = (~reached).nonzero().flatten().tolist()
        if not bool(reached.any()):
            continue  # reported by the check `parts`
        if dead:
            rows = batch.parts[part].rows
            row = int(rows[dead[0]])
            place = dead[0] - int((rows < row).sum()) + 1
            return fault(
                f"{len(dead)} of {len(reached)} scored tokens of part {part!r} never have a "
                f"gradient, first token {place} of {int((rows == row).sum())} in row {row + 1}"
            )
        counted += len(reached)
    if not counted:
        return not_applicable("no part has a gradient")
    return passed(f"{counted} tokens under {_DRAWS + 3} predictions")


@lru_cache(maxsize=1)  # for `parts` and `tokens`
def _reached(lab: TinyLab) -> dict[Part, Tensor]:
    """[N] bool by part: True if a token has a gradient under any of several predictions."""
    reached: dict[Part, Tensor] = {
        part: torch.zeros(len(one.labels), dtype=torch.bool)
        for part, one in lab.batch().parts.items()
        if part in lab.needs.parts
    }
    for batch in _probes(lab):
        if all(bool(tokens.all()) for tokens in reached.values()):
            break
        found = slopes(lab.total(batch), batch)
        for part, tokens in reached.items():
            for slope in found[part]:
                tokens |= slope.ne(0).any(dim=1)
    return reached


def _probes(lab: TinyLab) -> Iterator[LossBatch]:
    """Batches with free logits: unchanged, with all labels more and less likely, and with noise; in
    every state the method passes through."""
    generator = torch.Generator().manual_seed(13)
    for state in lab.states():
        batch = lab.batch(state)
        yield freed(batch)
        for sign in (1, -1):
            yield freed(batch, {p: _likelier(one, sign * _MOVED) for p, one in batch.parts.items()})
        for _ in range(_DRAWS):
            yield freed(batch, {p: _moved(one, generator) for p, one in batch.parts.items()})


def _likelier(part: Predictions, by: float) -> Token:
    at = part.labels.unsqueeze(1)
    return Token(part.logits.scatter_add(1, at, part.logits.new_full(at.shape, by)), part.labels)


def _moved(part: Predictions, generator: torch.Generator) -> Token:
    noise = torch.randn(part.logits.shape, generator=generator, dtype=part.logits.dtype)
    return Token(part.logits + _MOVED * noise, part.labels)


def _gradient(lab: TinyLab, batch: LossBatch, *parts: Part) -> tuple[float, Tensor]:
    """The loss of a freed batch, and its gradient in the leaves of `parts` as one vector."""
    loss = lab.total(batch)
    found = slopes(loss, batch)
    return loss.item(), torch.cat([slope.flatten() for part in parts for slope in found[part]])


@check(
    "references",
    why="A reference that is read and then lost (detached into nothing, weighed by 0, cancelled) "
    "costs a copy of the model, and the method no longer computes its equation.",
    fix="Follow the reference through the loss; leave it out of `needs` where it has no effect.",
)
def references(lab: TinyLab) -> Outcome:
    """Every declared reference changes the loss or its gradient when it is shifted."""
    seen: list[str] = []
    for name, field, declared in (
        ("log-probabilities", "token_logprob", lab.needs.logprobs),
        ("distributions", "hidden", lab.needs.distributions),
        ("states", "states", lab.needs.states),
    ):
        for part in sorted(declared):
            if not _matters(lab, part, field):
                return fault(
                    f"the reference's {name} of part {part!r} change neither the loss nor its "
                    "gradient when they are shifted"
                )
            seen.append(f"{name} of {part}")
    return passed(", ".join(seen)) if seen else not_applicable("it declares no reference")


def _matters(lab: TinyLab, part: Part, field: str) -> bool:
    """True if noise on a `field` of a part's reference, of its own size, shows in the loss."""
    generator = torch.Generator().manual_seed(17)
    for batch in _probes(lab):
        start = batch.reference.parts.get(part)
        if start is None:
            return True  # reported by the check `needs`
        value = getattr(start, field)
        shifted: Any = (
            {layer: _noisy(state, generator) for layer, state in value.items()}
            if field == "states"
            else _noisy(value, generator)
        )
        moved: dict[Part, Reference] = dict(batch.reference.parts)
        moved[part] = replace(start, **{field: shifted})
        one, slope = _gradient(lab, batch, *batch.parts)
        other, changed = _gradient(lab, replace(batch, reference=References(moved)), *batch.parts)
        if one != other or not torch.equal(slope, changed):
            return True
    return False


def _noisy(value: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return value + noise * value.abs().mean()


@check(
    "balance",
    why="A retain term that grows or shrinks with the number of forget rows has another weight at "
    "every batch size and in every split of the benchmark.",
    fix="Divide each part's sum by its own counts (`batch.retain.mean_tokens(…)`), and multiply "
    "no term by a count of another part.",
)
def balance(lab: TinyLab) -> Outcome:
    """Doubling the forget rows does not change the gradient of the retain rows."""
    if not {"forget", "retain"} <= lab.needs.parts:
        return not_applicable("it does not read both forget and retain rows")
    batch = freed(lab.batch())
    one, two = (_gradient(lab, each, "retain")[1] for each in (batch, _doubled(batch)))
    once, twice = float(one.norm()), float(two.norm())
    if not once:
        return not_applicable("the retain rows have no gradient")
    if float((one - two).norm()) <= NEAR * max(once, twice):
        return passed(f"gradient norm {once:.6g} with the forget rows once and twice")
    # A mean over the union of the parts weighs them by their counts, by definition.
    gaps = [float((share * one - two).norm()) for share in _shares(batch)]
    if min(gaps) <= NEAR * max(once, twice):
        return passed("the loss is a mean over the union of the parts, weighed by their counts")
    return fault(
        f"the retain rows' gradient has norm {once:.6g} with the forget rows once, "
        f"{twice:.6g} with them twice"
    )


def _shares(batch: LossBatch) -> Iterator[float]:
    """Factors on the retain rows' weight in a mean over all tokens or rows, others doubled."""
    retain, others = batch.retain, [one for p, one in batch.parts.items() if p != "retain"]
    for some in (others, [batch.forget]):
        for own, more in (
            (retain.step_tokens, sum(one.step_tokens for one in some)),
            (retain.step_rows, sum(one.step_rows for one in some)),
        ):
            yield (own + more) / (own + 2 * more)


def _doubled(batch: LossBatch) -> LossBatch:
    """Repeat every row of every part except the retain rows."""
    parts: dict[Part, Predictions] = {
        p: one if p == "retain" else _twice(one) for p, one in batch.parts.items()
    }
    references: dict[Part, Reference] = {
        p: one if p == "retain" else _twice(one) for p, one in batch.reference.parts.items()
    }
    rewards = None if batch.rewards is None else batch.rewards.repeat(2)
    return replace(batch, parts=parts, reference=References(references), rewards=rewards)


def _twice(one: _T) -> _T:
    """Repeat every row of a part's predictions or reference."""
    changed: dict[str, Any] = {}
    for field in fields(one):
        value = getattr(one, field.name)
        if isinstance(value, Tensor):
            changed[field.name] = torch.cat([value] * 2)
        elif isinstance(value, int):  # counts
            changed[field.name] = 2 * value
    changed["rows"] = torch.cat([one.rows, one.rows + one.row_count])
    changed["states"] = {layer: torch.cat([state] * 2) for layer, state in one.states.items()}
    return replace(one, **changed)
