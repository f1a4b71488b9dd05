"""Checks of a method's step: a loss that can be trained, the same however the step is divided.

The first ones run first: if one of them fails, no other result means anything.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils.benchmark import set_torch_threads

from unlearnbench.api.method import LossBatch, Method
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed
from unlearnbench.testing.declarations import is_importable
from unlearnbench.testing.fresh import begin, end
from unlearnbench.testing.probes import freed
from unlearnbench.testing.tiny_lab import Cuts, Measured, TinyLab
from unlearnbench.training.objective import called

NEAR = 1e-7
"""Relative; float64 rounds at 1e-16, and sums over a step lose few of its digits."""


def difference(measured: Measured, other: Measured, first: str, second: str) -> str:
    """Describe the first difference between two measurements of a step; empty if they agree."""
    # A loss may be 0 up to rounding (GRPO's is), so the gradient's norm sets the scale.
    scale = max(measured.norm, other.norm)
    for name in measured.terms:
        a, b = measured.terms[name], other.terms[name]
        if apart(a, b, scale):
            return f"{name} is {a:.6g} {first}, {b:.6g} {second}"
    gap = float((measured.flat - other.flat).norm())
    if not gap <= NEAR * scale:
        return f"the gradient differs by {gap / scale:.2g} of its norm: {first}, and {second}"
    for key in measured.state.keys() | other.state.keys():
        a, b = measured.state.get(key, 0.0), other.state.get(key, 0.0)
        if apart(a, b):
            return f"state {key!r} becomes {a:.6g} {first}, {b:.6g} {second}"
    return ""


def apart(a: float, b: float, scale: float = 0.0) -> bool:
    """True if two numbers differ by more than rounding, relative to the largest or to `scale`."""
    return not abs(a - b) <= NEAR * max(abs(a), abs(b), scale)  # `not`: nan is apart from all


_IN_PLACE = re.compile(r"in-?place", re.IGNORECASE)
_CACHED = ("token_logprob", "sequence_logprob", "lengths", "entropy", "margin")
"""Values of a part that are computed once and shared by all readers."""


def _alike(lab: TinyLab, divisions: Iterable[Cuts | None], first: str, second: str) -> Outcome:
    """Compare the step with the same step divided otherwise."""
    for cuts in divisions:
        if result := difference(lab.whole, lab.measure(cuts), first, second):
            return fault(result)
    return passed(f"loss {lab.whole.loss:.6g} every time")


@check(first=True)
def loss(lab: TinyLab) -> Outcome:
    """On an ordinary batch the loss is a finite scalar tensor with a finite gradient.

    A loss without a scalar value and a gradient cannot be trained, and one that is NaN on an
    ordinary batch stops a run at its first step: no other check means anything then.

    `return batch.forget.mean_tokens(values)`: a scalar tensor, or several by name.
    """
    try:
        measured = lab.whole
        lab.total(freed(lab.batch()))
    except Exception as error:  # only a change in place is recognised; the rest is raised
        cause = error.__cause__ or error
        if isinstance(cause, RuntimeError) and _IN_PLACE.search(str(cause)):
            return fault(f"changes a tensor of the batch in place: {error}")
        raise
    for name, value in measured.terms.items():
        if not math.isfinite(value):
            term = "the loss" if name == "loss" else f"the term {name!r}"
            return fault(f"{term} is {value} on an ordinary batch")
    if not measured.flat.isfinite().all():
        return fault(
            f"the gradient is not finite on an ordinary batch, at a loss of {measured.loss:.6g}"
        )
    return passed(f"{measured.loss:.6g}, gradient norm {measured.norm:.6g}")


@check(first=True)
def read_only(lab: TinyLab) -> Outcome:
    """The loss changes nothing in its batch.

    The tensors of a batch are shared: by the terms of a loss, a retain term that is added, and the
    statistics of the step. A change in place changes what the next one reads.

    Write `x = x * 2` in place of `x *= 2`, `masked_fill` in place of `masked_fill_`; or `.clone()`
    first.
    """
    batch = next(lab.batches([lab.draws]))
    state, parts = dict(batch.state), list(batch.parts)
    for predictions in batch.parts.values():
        for name in _CACHED:
            getattr(predictions, name)
    tensors = [(name, tensor, tensor._version) for name, tensor in _tensors(batch)]
    with called(lab.method, "loss"):
        lab.method.loss(batch)
    for name, tensor, version in tensors:
        if tensor._version != version:
            return fault(f"changes {name} in place")
    if dict(batch.state) != state:
        return fault("changes `batch.state`, which only `advance` may")
    if list(batch.parts) != parts:
        return fault("changes `batch.parts`")
    return passed(f"{len(tensors)} tensors as they were")


def _tensors(batch: LossBatch) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch, named as a method's author writes them."""
    owners: dict[str, Any] = {"batch": batch}
    owners |= {f"batch.{part}": value for part, value in batch.parts.items()}
    owners |= {f"batch.reference.{part}": v for part, v in batch.reference.parts.items()}
    for name, owner in owners.items():
        for key, value in vars(owner).items():
            if isinstance(value, Tensor):
                yield f"{name}.{key}", value
            elif isinstance(value, Mapping):
                yield from (
                    (f"{name}.{key}[{inner!r}]", tensor)
                    for inner, tensor in value.items()
                    if isinstance(tensor, Tensor)
                )


@check(first=True)
def repeatable(lab: TinyLab) -> Outcome:
    """The same call twice gives the same loss and gradient.

    A loss that drops at random, or counts its calls, changes its value whenever a step is split,
    resumed or repeated; every other check would report that as its own fault.

    No dropout, no random numbers without a `Generator` of a fixed seed, no counter; values that
    pass from step to step belong in `state`.
    """
    again = "when called again on the same batch: random numbers, or something kept between calls"
    return _alike(lab, [None, None], "at first", again)


@check()
def padding(lab: TinyLab) -> Outcome:
    """Padding, because of longer rows in the batch, changes neither loss nor gradient.

    Harnesses average over padded positions (the KL of the TOFU code, UNDIAL, RMU): the same weight
    then has another strength at every padded length.

    Reduce with `mean_tokens`, `mean_rows` or `mean_sequences`; never reshape to [B, T].
    """
    ordered = sorted(lab.draws, key=lambda draw: lab.lengths[draw.index])
    like = lab.measure([ordered[i : i + 2] for i in range(0, len(ordered), 2)])
    mixed = lab.measure([[ordered[i], ordered[-1 - i]] for i in range(len(ordered) // 2)])
    result = difference(like, mixed, "in batches of equal lengths", "in batches of mixed lengths")
    return fault(result) if result else passed(f"loss {lab.whole.loss:.6g} every time")


@check()
def order(lab: TinyLab) -> Outcome:
    """The order of the rows within a step changes nothing.

    Rows are shuffled in every epoch; a loss that depends on their order within a step pairs what
    does not belong together.

    Match rows of different parts by position only: row b of each part has one question.
    """
    draws = list(lab.draws)
    orders = (draws[::-1], draws[2:] + draws[:2])
    return _alike(lab, [[draws] for draws in orders], "in order", "in another order")


@check()
def accumulation(lab: TinyLab) -> Outcome:
    """One whole batch, and the same rows accumulated one by one, train the same model.

    Custom losses that average micro-batch means weigh tokens by their neighbours (harnesses after
    transformers 4.46, NPO in SimNPO's WMDP code): the batch size changes the method.

    `batch.forget.mean_tokens(values)` in place of `values.mean()`: it divides by the counts of the
    whole step. Other values of the whole step belong in `statistics`.
    """
    return _alike(lab, [[[draw] for draw in lab.draws]], "in one batch", "row by row")


@check()
def doubling(lab: TinyLab) -> Outcome:
    """A step with the same rows twice has the same loss and gradient as with them once.

    A sum where a mean is meant (`values.sum()`) makes the loss grow with the batch and the answers'
    lengths: the same learning rate then has another strength in every configuration.

    `batch.forget.mean_tokens(values)` in place of `values.sum()`: means divide by the counts of the
    whole optimiser step.
    """
    return _alike(lab, [[[*lab.draws, *lab.draws]]], "once", "with the same rows twice")


@check()
def processes(lab: TinyLab) -> Outcome:
    """The rows of a step, divided among 2 or 3 processes, add up to the same step.

    Results that change with the number of GPUs were reported for every harness (open-unlearning
    #139, #144; PDU's multiplier is updated by each process for itself).

    As for accumulation; and keep values that pass from step to step in `state`, not in the method.
    """
    # Divided as the trainer does; each process takes two rows at a time. One row for each process
    # is what `accumulation` does.
    shares = [[lab.draws[rank::world] for rank in range(world)] for world in (2, 3)]
    cuts = [[rows[i : i + 2] for rows in share for i in range(0, len(rows), 2)] for share in shares]
    return _alike(lab, cuts, "in one process", "in several processes")


@check(name="fresh-process")
def fresh(lab: TinyLab) -> Outcome:
    """A fresh process that has seen another row first gives the same loss and gradient.

    A scale that is fixed by the first batch, or a cache that outlives a run, gives each process of
    a sweep its own numbers, and a resumed run others than an uninterrupted one.

    Keep nothing between calls: values that pass from step to step belong in `state`, those of the
    whole step in `statistics`.
    """
    if not is_importable(type(lab.method)):
        return not_applicable("another process cannot import a class of a function or a notebook")
    lab.fresh = begin(step_numbers, lab.method) if lab.fresh is None else lab.fresh
    answer = end(lab.fresh)
    if isinstance(answer, str):
        return fault(f"in a fresh process: {answer}")
    values = zip(("loss", "norm"), (lab.whole.loss, lab.whole.norm), answer, strict=True)
    for subject, a, b in values:
        if apart(a, b, lab.whole.norm):
            return fault(
                f"the {subject} is {a:.6g} here, {b:.6g} in a fresh process that has "
                "seen another row first: something is kept from an earlier call"
            )
    return passed(f"loss {lab.whole.loss:.6g} in both")


def step_numbers(method: Method) -> tuple[float, float]:
    """Loss and gradient norm of a step, after another row."""
    with set_torch_threads(1):
        lab = TinyLab(method)
        lab.measure([lab.draws[-1:]])
        return lab.whole.loss, lab.whole.norm
