"""Checks that what is declared has an effect: parts, tokens, references, and each on its own side.

A loss may leave out a token for what the model says of it (a hinge, the k likeliest): each is
looked at under several predictions, and faulted only where none of them gives it a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from unlearnbench.losses import Predictions, Reference
from unlearnbench.method import LossBatch, Part, References
from unlearnbench.retain import called
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed
from unlearnbench.testing.free import Token, freed
from unlearnbench.testing.invariance import NEAR
from unlearnbench.testing.laboratory import Laboratory

_EPOCHS = 12
"""A method with a state may use a part only once it has left its warm-up."""
_DRAWS = 6
_MOVED = 3.0
"""How far logits are moved: p = 0.5 becomes 0.95 or 0.05."""


@check(
    "parts",
    why="A part that has no gradient costs a forward pass and teaches nothing: a retain term that "
    "is detached, or weighed by 0, looks like one that works.",
    mend="Leave the part out of `needs`, or find where its gradient is lost (`detach`, `no_grad`).",
)
def parts(lab: Laboratory) -> Outcome:
    """Every declared part has a gradient."""
    reached = _reached(lab)
    dead = [repr(part) for part, tokens in reached.items() if not bool(tokens.any())]
    told = f"no gradient ever reaches {' and '.join(dead)}"
    return fault(told) if dead else passed(f"{', '.join(reached)} under {_DRAWS + 3} predictions")


@check(
    "tokens",
    why="Answers are scored token by token; a slice or a mask that leaves some out unlearns less "
    "than is said, and nobody sees it in the loss.",
    mend="Do not slice or mask tokens; the first ones are left out by "
    "`ignore_first_answer_tokens`.",
)
def tokens(lab: Laboratory) -> Outcome:
    """Every scored token has a gradient."""
    batch, counted = lab.batch(), 0
    for part, reached in _reached(lab).items():
        dead = (~reached).nonzero().flatten().tolist()
        if not bool(reached.any()):
            continue  # the check of parts has it
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


def _reached(lab: Laboratory) -> dict[Part, Tensor]:
    """[N] bool by part: whether a token has a gradient under any of several predictions."""
    reached: dict[Part, Tensor] = {
        part: torch.zeros(len(one.labels), dtype=torch.bool)
        for part, one in lab.batch().parts.items()
        if part in lab.needs.parts
    }
    for batch in _probes(lab):
        if all(bool(tokens.all()) for tokens in reached.values()):
            break
        for part, slopes in _slopes(lab.total(batch), batch).items():
            for slope in slopes:
                if part in reached and slope is not None:
                    reached[part] |= slope.ne(0).any(dim=1)
    return reached


def _probes(lab: Laboratory) -> Iterator[LossBatch]:
    """Batches with free logits: as they are, with all labels likelier and less likely, and moved at
    random; in every state that the method goes through."""
    generator = torch.Generator().manual_seed(13)
    for state in _states(lab):
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


def _states(lab: Laboratory) -> Iterator[Mapping[str, float]]:
    state: Mapping[str, float] = lab.method.start()
    for epoch in range(1, _EPOCHS + 1):
        yield state
        if not state:
            return
        batch = lab.batch(state)
        lab.total(batch)
        reported = {name: value.item() for name, value in batch.reported.items()}
        with called(lab.method, "advance"):
            state = lab.method.advance(state, reported, epoch)


def _slopes(loss: Tensor, batch: LossBatch) -> dict[Part, list[Tensor | None]]:
    """The gradient at each part's free tensors: logits, and the hidden states that it may read."""
    leaves: dict[Part, list[Tensor]] = {
        part: [one.hidden, *one.states.values()] for part, one in batch.parts.items()
    }
    flat = [leaf for own in leaves.values() for leaf in own]
    found = iter(torch.autograd.grad(loss, flat, allow_unused=True, retain_graph=True))
    return {part: [next(found) for _ in own] for part, own in leaves.items()}


@check(
    "references",
    why="A reference that is read and then lost (detached into nothing, weighed by 0, cancelled) "
    "costs a copy of the model, and the method is not the one that its equation says.",
    mend="Follow the reference through the loss; leave it out of `needs` where it has no effect.",
)
def references(lab: Laboratory) -> Outcome:
    """Every declared reference changes the loss or its gradient when it is shifted."""
    needs = lab.needs
    kinds: dict[str, frozenset[Part]] = {
        "token_logprob": frozenset(needs.logprobs),
        "hidden": frozenset(needs.distributions),
        "states": frozenset(needs.states),
    }
    names = {"token_logprob": "log-probabilities", "hidden": "distributions", "states": "states"}
    found: list[tuple[str, Part]] = [
        (kind, part) for kind, own in kinds.items() for part in sorted(own)
    ]
    for kind, part in found:
        if not _matters(lab, part, kind):
            return fault(
                f"the reference's {names[kind]} of part {part!r} change neither the loss nor its "
                "gradient when they are shifted"
            )
    told = ", ".join(f"{names[kind]} of {part}" for kind, part in found)
    return passed(told) if found else not_applicable("the method declares no reference")


def _matters(lab: Laboratory, part: Part, kind: str) -> bool:
    generator = torch.Generator().manual_seed(17)
    for batch in _probes(lab):
        known = batch.reference.parts.get(part)
        if known is None:
            return True  # the check of needs has it
        shifted: dict[Part, Reference] = {
            **batch.reference.parts,
            part: _shifted(known, kind, generator),
        }
        one = lab.total(batch)
        other = lab.total(replace(batch, reference=References(shifted)))
        if one.item() != other.item():
            return True
        pairs = zip(_all(_slopes(one, batch)), _all(_slopes(other, batch)), strict=True)
        if any(not torch.equal(a, b) for a, b in pairs):
            return True
    return False


def _all(slopes: Mapping[Part, list[Tensor | None]]) -> list[Tensor]:
    return [slope for own in slopes.values() for slope in own if slope is not None]


def _shifted(known: Reference, kind: str, generator: torch.Generator) -> Reference:
    """`known` with noise of its own size on one of the things that a loss can read of it."""

    def noisy(value: Tensor) -> Tensor:
        noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        return value + noise * value.abs().mean()

    if kind == "states":
        return replace(known, states={layer: noisy(state) for layer, state in known.states.items()})
    if kind == "token_logprob":
        return replace(known, token_logprob=noisy(known.token_logprob))
    return known if known.hidden is None else replace(known, hidden=noisy(known.hidden))


@check(
    "balance",
    why="A retain term that grows or shrinks with the number of forget rows is another weight in "
    "every batch size and in each of the benchmark's splits.",
    mend="Divide each part's sum by its own counts (`batch.retain.mean_tokens(…)`), and multiply "
    "no term by a count of another part.",
)
def balance(lab: Laboratory) -> Outcome:
    """Doubling the rows to forget leaves the retain rows' gradient as it is."""
    if not {"forget", "retain"} <= lab.needs.parts:
        return not_applicable("it does not read both forget and retain rows")
    single, double = (change(lab.batch()) for change in (freed, partial(_doubled)))
    one, two = (
        torch.cat([torch.zeros(1), *(s.flatten() for s in own if s is not None)])
        for own in (_slopes(lab.total(b), b)["retain"] for b in (single, double))
    )
    if not bool(one.any()):
        return not_applicable("the retain rows have no gradient")
    scale = max(float(one.norm()), float(two.norm()))
    gap = float((one - two).norm())
    if gap <= NEAR * scale:
        return passed(f"gradient norm {float(one.norm()):.6g} beside once and twice the rows")
    # A mean over the union of the parts weighs them by their counts, as its equation says.
    if any(float((share * one - two).norm()) <= NEAR * scale for share in _shares(single)):
        return passed("the loss is a mean over the union of the parts, weighed by their counts")
    return fault(
        f"the retain rows' gradient has norm {float(one.norm()):.6g} beside the forget rows, "
        f"{float(two.norm()):.6g} beside twice as many"
    )


def _shares(batch: LossBatch) -> Iterator[float]:
    """What a mean over all tokens or rows leaves of the retain rows' weight, others doubled."""
    retain, others = batch.retain, [one for p, one in batch.parts.items() if p != "retain"]
    for some in (others, [batch.forget]):
        for kept, more in (
            (retain.step_tokens, sum(one.step_tokens for one in some)),
            (retain.step_rows, sum(one.step_rows for one in some)),
        ):
            yield (kept + more) / (kept + 2 * more)


def _doubled(batch: LossBatch) -> LossBatch:
    """Every part but the retain rows twice, row for row."""
    free = freed(batch)
    return replace(
        free,
        parts={p: one if p == "retain" else _twice(one) for p, one in free.parts.items()},
        reference=References(
            {p: r if p == "retain" else _twice_known(r) for p, r in free.reference.parts.items()}
        ),
        rewards=None if free.rewards is None else torch.cat([free.rewards] * 2),
    )


def _twice(one: Predictions) -> Predictions:
    return replace(
        one,
        hidden=torch.cat([one.hidden] * 2),
        labels=torch.cat([one.labels] * 2),
        rows=torch.cat([one.rows, one.rows + one.row_count]),
        row_count=2 * one.row_count,
        step_tokens=2 * one.step_tokens,
        step_rows=2 * one.step_rows,
        states={layer: torch.cat([state] * 2) for layer, state in one.states.items()},
        scores=None if one.scores is None else torch.cat([one.scores] * 2),
    )


def _twice_known(known: Reference) -> Reference:
    return replace(
        known,
        token_logprob=torch.cat([known.token_logprob] * 2),
        rows=torch.cat([known.rows, known.rows + known.row_count]),
        row_count=2 * known.row_count,
        hidden=None if known.hidden is None else torch.cat([known.hidden] * 2),
        states={layer: torch.cat([state] * 2) for layer, state in known.states.items()},
    )
