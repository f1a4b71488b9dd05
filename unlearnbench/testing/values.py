"""Checks of the loss as a number: finite, in the right direction, known where it can be known."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unlearnbench.losses import Predictions
from unlearnbench.method import LossBatch, Part
from unlearnbench.testing.check import (
    Outcome,
    check,
    fault,
    not_applicable,
    not_declared,
    passed,
)
from unlearnbench.testing.free import Token, freed, own, slopes
from unlearnbench.testing.held import Held
from unlearnbench.testing.laboratory import Laboratory
from unlearnbench.testing.tiny import VOCABULARY

_GAP = 1e4
_TOO_LONG = 99
"""More first tokens to ignore than any answer has."""


@check(
    "extremes",
    why="−log(1 − p) is infinite as soon as p rounds to 1, at a logit gap of 17 in float32: "
    "memorised answers, which are what is unlearned, are there.",
    mend="Start from `log_odds`, `token_logprob` or a primitive; avoid log(1 − exp(…)) and p / q.",
)
def extremes(lab: Laboratory) -> Outcome:
    """Loss and gradient are finite for logits ±10 000 from the rest, in fp32 and bf16."""
    tried = 0
    for kind in (torch.float32, torch.bfloat16):
        batch = lab.like(dtype=kind).batch()
        for gap in (_GAP, -_GAP):
            for masked in (False, True):
                tokens: dict[Part, Token] = {
                    name: _extreme(part, gap, masked=masked, kind=kind)
                    for name, part in batch.parts.items()
                }
                extreme = freed(batch, tokens)
                found = _not_finite(lab.total(extreme), extreme)
                if found:
                    beside = ", a masked vocabulary entry" if masked else ""
                    name = str(kind).removeprefix("torch.")
                    return fault(f"{found} at the label's logit {gap:+g} in {name}{beside}")
                tried += 1
    return passed(f"finite in {tried} cases")


def _extreme(part: Predictions, gap: float, *, masked: bool, kind: torch.dtype) -> Token:
    """Labels at ±`gap`, the start model's the other way; `masked`: one entry is never predicted."""
    at = part.labels.unsqueeze(1)
    policy, reference = (part.logits.scatter(1, at, g).to(kind) for g in (gap, -gap))
    if masked:
        entry = (at + 1) % VOCABULARY
        policy, reference = (z.scatter(1, entry, -torch.inf) for z in (policy, reference))
    return Token(policy, part.labels, reference)


def _not_finite(loss: Tensor, batch: LossBatch) -> str:
    if not bool(torch.isfinite(loss)):
        return f"the loss is {loss.item()}"
    for part, slope in slopes(loss, batch).items() if loss.requires_grad else ():
        if slope is not None and not bool(torch.isfinite(slope).all()):
            return f"the gradient of part {part!r} is not finite"
    return ""


@check(
    "one-token",
    why="Answers of one token (an EOS alone, after a template has eaten the rest) make means over "
    "nothing, and standard deviations of one.",
    mend="Divide by counts that are at least 1, as `mean_rows` does.",
)
def one_token(lab: Laboratory) -> Outcome:
    """Answers of a single token give a finite loss and gradient."""
    found, loss = _finite_through_the_model(lab.like(lengths=(1, 1, 1)))
    return fault(found) if found else passed(f"loss {loss:.6g}")


@check(
    "empty",
    why="CE-U elsewhere gives NaN when every answer of a micro-batch is shorter than the tokens "
    "that are ignored: a cross entropy of no rows.",
    mend="Reduce with `mean_tokens` or `mean_sequences`: 0 with gradient 0 where there is nothing.",
)
def empty(lab: Laboratory) -> Outcome:
    """Nothing scored, in some rows or in all, gives a finite loss and gradient."""
    for ignored in (2, _TOO_LONG):
        changed = {"ignore_first_answer_tokens": ignored}
        method = type(lab.method).model_validate({**lab.method.model_dump(), **changed})
        found, loss = _finite_through_the_model(Laboratory(method))
        if found:
            return fault(f"{found} with ignore_first_answer_tokens: {ignored}")
    return passed(f"loss {loss:.6g} with nothing to forget")


def _finite_through_the_model(lab: Laboratory) -> tuple[str, float]:
    measured = lab.measure()
    if not torch.isfinite(torch.tensor(measured.loss)):
        return f"the loss is {measured.loss}", measured.loss
    finite = bool(torch.isfinite(measured.flat).all())
    return "" if finite else "the gradient is not finite", measured.loss


@check(
    "reference",
    why="A reference that is not the start model, or another scale, shows here at once: TOFU's DPO "
    "has a factor 1 where the NPO repository has 2/β, so that rates mean different things.",
    mend="Compare the loss with its equation at a log-ratio of 0.",
)
def reference(lab: Laboratory) -> Outcome:
    """Where the model still is the start model, the loss has its known value."""
    known = lab.method.value_at_reference()
    if known is None:
        return not_declared("the method does not define value_at_reference")
    measured = lab.measure(model=lab.start)
    wanted: Mapping[str, float] = known if isinstance(known, Mapping) else {"the loss": known}
    got = {**measured.terms, "the loss": measured.loss}
    for name, value in wanted.items():
        if name not in got:
            return fault(f"value_at_reference names the term {name!r}, which the loss has not")
        if not abs(got[name] - value) <= 1e-9 * max(abs(value), 1.0):
            return fault(f"{name} is {got[name]:.9g}, declared as {value:.9g}")
    return passed(", ".join(f"{name} is {value:.6g}" for name, value in wanted.items()))


@check(
    "step",
    why="A loss that is detached in the wrong place, or has a gradient derived wrongly by hand, "
    "trains something else than it shows.",
    mend="Detach what the equation holds fixed, by `.detach()` (in `no_grad` it cannot be held "
    "here), and nothing else; draw no random numbers in `loss`.",
)
def step(lab: Laboratory) -> Outcome:
    """A small step lowers the loss by what the gradient says, what it detaches held fixed."""
    model, terms = lab.model.copied(), Held(lab.objective)
    before = terms(next(lab.batches([lab.draws], model)))
    torch.stack([*before.values()]).sum().backward()
    layers = lab.model.config.num_hidden_layers
    trained = [
        p
        for n, p in model.named_parameters()
        if p.grad is not None and lab.method.trains(n, layers)
    ]
    gradients = [torch.as_tensor(p.grad) for p in trained]
    norm = float(torch.stack([g.square().sum() for g in gradients]).sum().sqrt()) if trained else 0
    if norm == 0:
        return fault("the gradient is zero: nothing would be trained")
    length = 1e-5
    with torch.no_grad():
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.sub_(gradient, alpha=length / norm)
    after = terms(next(lab.batches([lab.draws], model)))
    fall = sum((before[name] - after[name]).item() for name in before)
    told = f"it falls by {fall:.4g}, the gradient says {length * norm:.4g}"
    return passed(told) if 0.5 < fall / (length * norm) < 2 else fault(told)


@check(
    "direction",
    why="Signs are easily confused (NPO repository #8), and winner and loser in DPO: the method "
    "then teaches what it should forget, and looks well trained doing so.",
    mend="The loss has to grow with the log-probability of what is forgotten, and only of that.",
)
def direction(lab: Laboratory) -> Outcome:
    """Training makes forgotten answers less likely, and what is learned instead more."""
    batch = freed(lab.batch())
    loss = lab.total(batch)
    told: list[str] = []
    for part, slope in slopes(loss, batch).items() if loss.requires_grad else ():
        wanted = 0 if part in lab.needs.scores else _wanted(part)  # the scores decide
        sign = wanted * (1 if lab.method.update_scale() > 0 else -1)
        if slope is None or sign == 0 or not _reads_labels(lab, batch, part, loss.item()):
            continue
        push = float(own(slope, batch.parts[part].labels).sum())
        if push * sign < 0:
            way = "less" if push > 0 else "more"
            return fault(f"the answers of part {part!r} become {way} likely")
        if push:
            told.append(f"{part} {'less' if push > 0 else 'more'} likely")
    scaled = " (the update is then reversed)" if lab.method.update_scale() < 0 else ""
    return passed(", ".join(told) + scaled) if told else not_applicable("it reads no true answers")


def _wanted(part: Part) -> int:
    """1 where the true logit is to fall, −1 where it is to rise; 0 where rewards decide."""
    return {"forget": 1, "sample": 0}.get(part, -1)


def _reads_labels(lab: Laboratory, batch: LossBatch, part: Part, loss: float) -> bool:
    predictions = batch.parts[part]
    other = Token(predictions.logits, (predictions.labels + 1) % VOCABULARY)
    return lab.total(freed(batch, {part: other})).item() != loss


@check(
    "bf16",
    why="Large models train in bfloat16, with 8 bits for a log-probability: a difference of two "
    "large sums keeps none of them.",
    mend="Stay in the type that the primitives return, float32; do not cast down.",
)
def bf16(lab: Laboratory) -> Outcome:
    """In bfloat16 the loss and its gradient are near those in float32."""
    exact, rough = (lab.like(dtype=kind).measure() for kind in (torch.float32, torch.bfloat16))
    cosine = float(exact.flat @ rough.flat) / (exact.norm * rough.norm or 1.0)
    gap = abs(exact.loss - rough.loss)
    told = f"loss {exact.loss:.5g} and {rough.loss:.5g}, cosine of the gradients {cosine:.4f}"
    near = gap <= 0.1 * max(abs(exact.loss), exact.norm) and cosine >= 0.9
    return passed(told) if near else fault(told)
