"""Checks that splitting, ordering and padding a step change no number."""

from __future__ import annotations

from unlearnbench.testing.check import Outcome, check, fault, passed
from unlearnbench.testing.tiny_lab import EPOCHS, SEED, Measured, TinyLab
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.trainer import Trainer

NEAR = 1e-7
"""Relative; float64 rounds at 1e-16, and sums over a step lose few of its digits."""


@check(
    "padding",
    why="Harnesses average over padded positions (the KL of the TOFU code, UNDIAL, RMU): the same "
    "weight then has another strength at every padded length.",
    fix="Reduce with `mean_tokens`, `mean_rows` or `mean_sequences`; never reshape to [B, T].",
)
def padding(lab: TinyLab) -> Outcome:
    """Padding, alone or because of longer rows in the batch, changes neither loss nor gradient."""
    alone = lab.whole
    lab.model.extra = 9
    padded = lab.measure()
    lab.model.extra = 0
    found = difference(alone, padded, "as it is", "with 9 more columns of padding")
    lengths = {draw: lab.lengths[draw.index] for draw in lab.draws}
    ordered = sorted(lab.draws, key=lambda draw: lengths[draw])
    half = len(ordered) // 2
    like = lab.measure([ordered[i : i + 2] for i in range(0, len(ordered), 2)])
    mixed = lab.measure([[ordered[i], ordered[-1 - i]] for i in range(half)])
    found = found or difference(
        like, mixed, "in batches of equal lengths", "in batches of mixed lengths"
    )
    return fault(found) if found else passed(f"loss {alone.loss:.6g} every time")


@check(
    "order",
    why="Rows are shuffled in every epoch; a loss that depends on their order within a step pairs "
    "what does not belong together.",
    fix="Match rows of different parts by position only: row b of each part has one question.",
)
def order(lab: TinyLab) -> Outcome:
    """The order of the rows within a step changes nothing."""
    draws = list(lab.draws)
    first = lab.whole
    for other in (draws[::-1], draws[2:] + draws[:2]):
        found = difference(first, lab.measure([other]), "in order", "in another order")
        if found:
            return fault(found)
    return passed(f"loss {first.loss:.6g} in 3 orders")


@check(
    "accumulation",
    why="Custom losses that average micro-batch means weigh tokens by their neighbours (harnesses "
    "after transformers 4.46, NPO in SimNPO's WMDP code): the batch size changes the method.",
    fix="`batch.forget.mean_tokens(values)` in place of `values.mean()`: it divides by the counts "
    "of the whole step. Other values of the whole step belong in `statistics`.",
)
def accumulation(lab: TinyLab) -> Outcome:
    """One whole batch, and the same rows accumulated one by one, train the same model."""
    whole, parts = lab.whole, lab.measure([[draw] for draw in lab.draws])
    found = difference(whole, parts, "in one batch", "row by row")
    if not found and "sample" not in lab.needs.parts:
        found = _training_difference(lab)
    return fault(found) if found else passed(f"loss {whole.loss:.6g} whole and in pieces")


def _training_difference(lab: TinyLab) -> str:
    """Describe a difference between training with and without accumulation; empty if none."""
    runs: list[tuple[list[float], Trainer]] = []
    for micro in (None, 1):
        how = TrainerSettings(EPOCHS, 4, 1e-3, SEED, micro_batch_size=micro)
        trainer = Trainer(lab.model.copied(), lab.objective, lab.rows, how, lab.pad, lab.references)
        steps = [step for epoch in range(1, EPOCHS + 1) for step in trainer.epoch(epoch)]
        runs.append(([value for s in steps for value in (s.loss, s.grad_norm)], trainer))
    (whole, one), (parts, other) = runs
    for i, (a, b) in enumerate(zip(whole, parts, strict=True)):
        if apart(a, b):
            what = "gradient norm" if i % 2 else "loss"
            return f"{what} of step {i // 2 + 1}: {a:.6g} in one batch, {b:.6g} row by row"
    if dict(one.state) != dict(other.state) and any(
        apart(one.state[key], other.state[key]) for key in one.state
    ):
        return f"state after training: {dict(one.state)} in one batch, {dict(other.state)} by row"
    return ""


@check(
    "doubling",
    why="A sum where a mean is meant (`values.sum()`) makes the loss grow with the batch and the "
    "answers' lengths: the same learning rate then has another strength in every configuration.",
    fix="`batch.forget.mean_tokens(values)` in place of `values.sum()`: means divide by the "
    "counts of the whole optimiser step.",
)
def doubling(lab: TinyLab) -> Outcome:
    """A step with the same rows twice has the same loss and gradient as with them once."""
    draws = list(lab.draws)
    once, twice = lab.whole, lab.measure([draws + draws])
    found = difference(once, twice, "once", "with the same rows twice")
    return fault(found) if found else passed(f"loss {once.loss:.6g} once and twice")


@check(
    "processes",
    why="Results that change with the number of GPUs were reported for every harness "
    "(open-unlearning #139, #144; PDU's multiplier is updated by each process for itself).",
    fix="As for accumulation; and keep values that pass from step to step in `state`, not in "
    "the method.",
)
def processes(lab: TinyLab) -> Outcome:
    """The rows of a step, divided among 2 or 3 processes, add up to the same step."""
    whole = lab.whole
    for world in (2, 3):  # one row for each process is what `accumulation` does
        # Divided as the trainer does; each process takes two rows at a time.
        mine = [lab.draws[rank::world] for rank in range(world)]
        cuts = [rows[i : i + 2] for rows in mine for i in range(0, len(rows), 2)]
        found = difference(whole, lab.measure(cuts), "in one process", f"in {world} processes")
        if found:
            return fault(found)
    return passed(f"loss {whole.loss:.6g} in 2 and 3 processes")


def difference(one: Measured, other: Measured, first: str, second: str) -> str:
    """Describe the first difference between two measurements of a step; empty if they agree."""
    # A loss may be 0 up to rounding (GRPO's is), so the gradient's norm sets the scale.
    scale = max(one.norm, other.norm)
    for name in one.terms:
        a, b = one.terms[name], other.terms[name]
        if apart(a, b, scale):
            return f"{name} is {a:.6g} {first}, {b:.6g} {second}"
    gap = float((one.flat - other.flat).norm())
    if not gap <= NEAR * scale:
        return f"the gradient differs by {gap / scale:.2g} of its norm: {first}, and {second}"
    for key in one.state.keys() | other.state.keys():
        a, b = one.state.get(key, 0.0), other.state.get(key, 0.0)
        if apart(a, b):
            return f"state {key!r} becomes {a:.6g} {first}, {b:.6g} {second}"
    return ""


def apart(a: float, b: float, scale: float = 0.0) -> bool:
    """True if two numbers differ by more than rounding, relative to the largest or to `scale`."""
    return not abs(a - b) <= NEAR * max(abs(a), abs(b), scale)  # `not`: nan is apart from all
