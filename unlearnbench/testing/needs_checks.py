"""Checks that everything which a method declares to read has an effect, and is read in full.

A loss may leave out a token depending on its prediction. A hinge does, and so does a loss of the k
likeliest tokens. Therefore every token is probed under several predictions. It is a fault only if a
token has no gradient under any of them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unlearnbench.api.method import LossBatch, Method, Needs, Part, Terms
from unlearnbench.losses.predictions import Reference
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed
from unlearnbench.testing.probes import Token, freed, slopes
from unlearnbench.testing.step_checks import NEAR
from unlearnbench.testing.tiny_lab import VOCABULARY, TinyLab
from unlearnbench.training.objective import called

_DRAWS = 6
"""Predictions with random logits, for each state of a method."""
_MOVED = 3.0
"""Added to logits: p = 0.5 becomes 0.95 or 0.05."""
_PREDICTIONS = 3 + _DRAWS
"""Predictions for each state of a method: as they are, more and less likely labels, and noise."""


@check()
def needs(lab: TinyLab) -> Outcome:
    """The declared needs are exactly what the loss reads.

    open-unlearning keeps a copy of the model for methods that never read it (WGA, SatImp), and pays
    a forward pass for retain rows with weight 0.

    Declare in `needs` what `loss` and `statistics` read, and nothing else.
    """
    declared = lab.needs
    contradiction = _contradiction(lab.method, declared)
    if contradiction:
        return fault(contradiction)
    # A need counts as read if it is read in any state.
    unread: set[str] | None = None
    for state in lab.states():
        batch = next(lab.batches([lab.draws], state=state))
        with called(lab.method, "loss"):
            # Raises an error if the loss reads something undeclared, because the batch lacks it.
            lab.method.loss(batch)
        unread_now = {
            need
            for need, lacking in _batches_without_a_need(batch, declared)
            if not _reads(lab.method.loss, batch, lacking)
        }
        batch_of_statistics = lab.batch(state)
        for part in declared.statistics:
            lacking = _without_part(batch_of_statistics, part)
            if not _reads(lab.method.statistics, batch_of_statistics, lacking):
                unread_now.add(f"statistics of {part!r}")
        unread = unread_now if unread is None else unread & unread_now
    if unread:
        return fault("; ".join(f"declares {need}, which it never reads" for need in sorted(unread)))
    references = {f"reference({part})" for part in declared.reference}
    seen = sorted({*declared.parts, *declared.statistics, *references})
    return passed(f"reads {', '.join(seen)}, as declared")


def _reads(
    function: Callable[[LossBatch], Tensor | Terms], batch: LossBatch, lacking: LossBatch
) -> bool:
    """Whether a function of a method reads what a batch lacks.

    Args:
        function: `loss` or `statistics`.
        batch: A whole batch.
        lacking: The same batch, which lacks something.
    """
    try:
        return _values_by_term(function(batch)) != _values_by_term(function(lacking))
    except Exception:  # any error may come from what is missing
        return True


def _values_by_term(values: Tensor | Terms) -> dict[str, Any]:
    terms = values if isinstance(values, Mapping) else {"loss": values}
    return {name: value.tolist() for name, value in terms.items()}


def _batches_without_a_need(batch: LossBatch, declared: Needs) -> Iterator[tuple[str, LossBatch]]:
    """Yield each need of the loss, with a batch that lacks it."""
    for part in declared.parts:
        yield f"the part {part!r}", _without_part(batch, part)
    for part in declared.scores & batch.parts.keys():
        yield f"scores of {part!r}", _with_changed_part(batch, part, scores=None)
    for reference in _references(declared):
        for part in reference.parts & batch.reference.parts.keys():
            lacking = _with_changed_reference(batch, part, reference.field, lambda _: None)
            yield f"{reference.name} of {part!r}", lacking
    for layer in declared.layers:
        yield f"layer {layer}", _without_layer(batch, layer)
    if declared.samples:
        yield "the rewards", replace(batch, rewards=None)


def _without_part(batch: LossBatch, part: Part) -> LossBatch:
    others = {other: values for other, values in batch.parts.items() if other != part}
    return replace(batch, parts=others)


def _without_layer(batch: LossBatch, layer: int) -> LossBatch:
    """Return a batch whose parts all lack the hidden states of a layer."""
    for part, predictions in batch.parts.items():
        states = {other: state for other, state in predictions.states.items() if other != layer}
        batch = _with_changed_part(batch, part, states=states)
    return batch


class _DeclaredReference(NamedTuple):
    """A kind of values of the start model."""

    name: str
    field: str
    """The field of `Reference` that has the values."""
    parts: Set[Part]
    """Parts for which the values are declared."""


def _references(declared: Needs) -> tuple[_DeclaredReference, ...]:
    """Return all kinds of values of the start model, with the parts that declare them."""
    return (
        _DeclaredReference("log-probabilities", "token_logprob", declared.logprobs),
        _DeclaredReference("distributions", "hidden", declared.distributions),
        _DeclaredReference("states", "states", declared.states),
    )


def _with_changed_part(batch: LossBatch, part: Part, **changes: Any) -> LossBatch:
    """Return a batch with other fields in the predictions of a part."""
    return replace(batch, parts={**batch.parts, part: replace(batch.parts[part], **changes)})


def _with_changed_reference(
    batch: LossBatch, part: Part, field: str, change: Callable[[Any], Any]
) -> LossBatch:
    """Return a batch with another value of the start model.

    Args:
        batch: The batch.
        part: Whose reference is changed.
        field: Of `Reference`.
        change: Returns the new value for an old one. It is called for each layer of `states`.
    """
    old: Any = batch.reference.parts[part]
    value = getattr(old, field)
    if isinstance(value, Mapping):
        new: Any = {layer: change(state) for layer, state in value.items()}
    else:
        new = change(value)
    changed: dict[Part, Reference] = {**batch.reference.parts, part: replace(old, **{field: new})}
    return replace(batch, reference=replace(batch.reference, parts=changed))


def _contradiction(method: Method, declared: Needs) -> str:
    """Describe a contradiction between declarations; empty if there is none.

    Args:
        method: The method, whose class names everything that any settings may need.
        declared: What `needed()` returns for the settings of the method.
    """
    most = type(method).needs
    for name in ("parts", "logprobs", "distributions", "states", "statistics", "scores"):
        beyond = sorted(set(getattr(declared, name)) - set(getattr(most, name)))
        if beyond:
            return f"needed() asks for {name} {beyond}, which the class's `needs` does not name"
    for part, options in (("alternative", declared.alternatives), ("sample", declared.samples)):
        if (part in declared.all_parts) != (options is not None):
            return f"the part {part!r} and its settings belong together: declare both or neither"
    if declared.samples is not None:
        reward = method.reward("an answer", "the truth")
        if not math.isfinite(reward):
            return f"reward('an answer', 'the truth') is {reward}"
    return ""


@check()
def parts(lab: TinyLab) -> Outcome:
    """Every declared part has a gradient.

    A part without a gradient costs a forward pass and trains nothing: a retain term that is
    detached, or weighed by 0, looks like one that works.

    Leave the part out of `needs`, or find where its gradient is lost (`detach`, `no_grad`).
    """
    reached = _reached_tokens(lab)
    unreached = [repr(part) for part, is_reached in reached.items() if not bool(is_reached.any())]
    if unreached:
        return fault(f"no gradient ever reaches {' and '.join(unreached)}")
    return passed(f"{', '.join(reached)} under {_PREDICTIONS} predictions")


@check()
def tokens(lab: TinyLab) -> Outcome:
    """Every scored token has a gradient.

    Answers are scored token by token; a slice or a mask that leaves some out unlearns less than the
    answer, and the loss does not show it.

    Do not slice or mask tokens; the first ones are left out by `ignore_first_answer_tokens`.
    """
    counted = 0
    for part, is_reached in _reached_tokens(lab).items():
        if not bool(is_reached.any()):
            # The check `parts` reports it.
            continue
        unreached = (~is_reached).nonzero().flatten().tolist()
        if unreached:
            return fault(
                f"{len(unreached)} of {len(is_reached)} scored tokens of part {part!r} never have "
                f"a gradient, such as token {unreached[0] + 1}"
            )
        counted += len(is_reached)
    if not counted:
        return not_applicable("no part has a gradient")
    return passed(f"{counted} tokens under {_PREDICTIONS} predictions")


# The checks `parts` and `tokens` follow one another, and both need it.
@lru_cache(maxsize=1)
def _reached_tokens(lab: TinyLab) -> dict[Part, Tensor]:
    """Return which tokens have a gradient under any of several predictions, as [N] bool by part."""
    reached: dict[Part, Tensor] = {
        part: torch.zeros(len(predictions.labels), dtype=torch.bool)
        for part, predictions in lab.batch().parts.items()
        if part in lab.needs.parts
    }
    for batch in _probes(lab):
        if all(bool(is_reached.all()) for is_reached in reached.values()):
            break
        slopes_of_part = slopes(lab.total(batch), batch)
        for part, is_reached in reached.items():
            for slope in slopes_of_part[part]:
                is_reached |= slope.ne(0).any(dim=1)
    return reached


def _probes(lab: TinyLab) -> Iterator[LossBatch]:
    """Yield batches with free logits, for every state that the method passes through.

    The logits are unchanged, then have all labels more likely and all labels less likely, then
    noise.
    """
    generator = torch.Generator().manual_seed(13)
    for state in lab.states():
        batch = lab.batch(state)
        yield freed(batch)
        for draw in range(2 + _DRAWS):
            tokens: dict[Part, Token] = {}
            for part, predictions in batch.parts.items():
                logits = predictions.logits
                # Drawn for the first two as well, which do not use it.
                offset = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
                if draw < 2:
                    sign = 1 - 2 * draw
                    offset = sign * one_hot(predictions.labels, VOCABULARY)
                tokens[part] = Token(logits + _MOVED * offset, predictions.labels)
            yield freed(batch, tokens)


def _loss_and_gradient(
    lab: TinyLab, batch: LossBatch, parts: Iterable[Part]
) -> tuple[float, Tensor]:
    """Return the loss of a freed batch, and its gradient in the leaves of `parts` as one vector."""
    loss = lab.total(batch)
    slopes_of_part = slopes(loss, batch)
    gradient = torch.cat([slope.flatten() for part in parts for slope in slopes_of_part[part]])
    return loss.item(), gradient


@check()
def references(lab: TinyLab) -> Outcome:
    """Every declared reference changes the loss or its gradient when it is shifted.

    A reference that is read and then lost (detached into nothing, weighed by 0, cancelled) costs a
    copy of the model, and the method no longer computes its equation.

    Follow the reference through the loss; leave it out of `needs` where it has no effect.
    """
    seen: list[str] = []
    for reference in _references(lab.needs):
        for part in sorted(reference.parts):
            if not _has_effect(lab, part, reference.field):
                return fault(
                    f"the reference's {reference.name} of part {part!r} change neither the loss "
                    "nor its gradient when they are shifted"
                )
            seen.append(f"{reference.name} of {part}")
    return passed(", ".join(seen)) if seen else not_applicable("it declares no reference")


def _has_effect(lab: TinyLab, part: Part, field: str) -> bool:
    """Whether the loss or its gradient changes with noise on a value of the start model.

    Args:
        lab: With the loss.
        part: Whose reference is changed.
        field: Of `Reference`.
    """
    with_noise = partial(_with_noise, generator=torch.Generator().manual_seed(17))
    for batch in _probes(lab):
        if part not in batch.reference.parts:
            # The check `needs` reports it.
            return True
        loss, gradient = _loss_and_gradient(lab, batch, batch.parts)
        changed_batch = _with_changed_reference(batch, part, field, with_noise)
        changed_loss, changed_gradient = _loss_and_gradient(lab, changed_batch, batch.parts)
        if loss != changed_loss or not torch.equal(gradient, changed_gradient):
            return True
    return False


def _with_noise(value: Tensor, generator: torch.Generator) -> Tensor:
    """Return a value with noise that is as large as the value itself."""
    noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return value + noise * value.abs().mean()


@check()
def balance(lab: TinyLab) -> Outcome:
    """Doubling the forget rows does not change the gradient of the retain rows.

    A retain term that grows or shrinks with the number of forget rows has another weight at every
    batch size and in every split of the benchmark.

    Divide each part's sum by its own counts (`batch.retain.mean_tokens(…)`), and multiply no term
    by a count of another part.
    """
    if not {"forget", "retain"} <= lab.needs.parts:
        return not_applicable("it does not read both forget and retain rows")
    batch = freed(lab.batch())
    # The counts are those of a step in which another micro-batch has as many rows again.
    doubled = batch
    for part, predictions in batch.parts.items():
        if part != "retain":
            doubled = _with_changed_part(
                doubled,
                part,
                step_tokens=2 * predictions.step_tokens,
                step_rows=2 * predictions.step_rows,
            )
    _, once = _loss_and_gradient(lab, batch, ["retain"])
    _, twice = _loss_and_gradient(lab, doubled, ["retain"])
    norm_once = float(once.norm())
    norm_twice = float(twice.norm())
    if not norm_once:
        return not_applicable("the retain rows have no gradient")
    rounding = NEAR * max(norm_once, norm_twice)
    if float((once - twice).norm()) <= rounding:
        return passed(f"gradient norm {norm_once:.6g} with the forget rows once and twice")
    # A mean over the union of the parts weighs them by their counts, by definition.
    gaps = [float((factor * once - twice).norm()) for factor in _factors_in_a_union(batch)]
    if min(gaps) <= rounding:
        return passed("the loss is a mean over the union of the parts, weighed by their counts")
    return fault(
        f"the retain rows' gradient has norm {norm_once:.6g} with the forget rows once, "
        f"{norm_twice:.6g} with them twice"
    )


def _factors_in_a_union(batch: LossBatch) -> Iterator[float]:
    """Yield by how much the retain rows weigh less in a mean if all other rows are doubled.

    The mean is over the tokens or the rows of all parts, or of the forget and retain rows.
    """
    retain = batch.retain
    others = [predictions for part, predictions in batch.parts.items() if part != "retain"]
    for doubled in (others, [batch.forget]):
        tokens = sum(predictions.step_tokens for predictions in doubled)
        yield (retain.step_tokens + tokens) / (retain.step_tokens + 2 * tokens)
        rows = sum(predictions.step_rows for predictions in doubled)
        yield (retain.step_rows + rows) / (retain.step_rows + 2 * rows)
