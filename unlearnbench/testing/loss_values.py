"""Checks of the loss's value: finite, of the right sign, and equal to declared values."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from unlearnbench.api.method import LossBatch, Part
from unlearnbench.losses.predictions import Predictions
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed
from unlearnbench.testing.detached_values import FixedDetached
from unlearnbench.testing.free_logits import Token, freed, slopes
from unlearnbench.testing.tiny_lab import TinyLab
from unlearnbench.testing.tiny_model import VOCABULARY

_GAP = 1e4
_TOO_LONG = 99
"""More first tokens to ignore than any answer has."""


@check(
    "extremes",
    why="−log(1 − p) is infinite as soon as p rounds to 1, at a logit gap of 17 in float32: "
    "memorised answers, the ones to unlearn, are that likely.",
    fix="Start from `log_odds`, `token_logprob` or a primitive; avoid log(1 − exp(…)) and p / q.",
)
def extremes(lab: TinyLab) -> Outcome:
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
                found = _not_finite(lab, freed(batch, tokens))
                if found:
                    mask = ", with a masked vocabulary entry" if masked else ""
                    name = str(kind).removeprefix("torch.")
                    return fault(f"{found} at the label's logit {gap:+g} in {name}{mask}")
                tried += 1
    return passed(f"finite in {tried} cases")


def _extreme(part: Predictions, gap: float, *, masked: bool, kind: torch.dtype) -> Token:
    """Labels at logit ±`gap`, ∓`gap` in the start model; `masked` sets one other logit to −inf."""
    at = part.labels.unsqueeze(1)
    policy, reference = (part.logits.scatter(1, at, g).to(kind) for g in (gap, -gap))
    if masked:
        entry = (at + 1) % VOCABULARY
        policy, reference = (z.scatter(1, entry, -torch.inf) for z in (policy, reference))
    return Token(policy, part.labels, reference)


def _not_finite(lab: TinyLab, batch: LossBatch) -> str:
    loss = lab.total(batch)
    if not loss.isfinite():
        return f"the loss is {loss.item()}"
    for part, (slope, *_) in slopes(loss, batch).items():
        if not slope.isfinite().all():
            return f"the gradient of part {part!r} is not finite"
    return ""


@check(
    "one-token",
    why="Answers of one token (an EOS alone, after a template has eaten the rest) make means over "
    "nothing, and standard deviations of one.",
    fix="Divide by counts that are at least 1, as `mean_rows` does.",
)
def one_token(lab: TinyLab) -> Outcome:
    """Answers of a single token give a finite loss and gradient."""
    found, loss = _finite_through_the_model(lab.like(lengths=(1, 1, 1)))
    return fault(found) if found else passed(f"loss {loss:.6g}")


@check(
    "empty",
    why="CE-U elsewhere gives NaN when every answer of a micro-batch is shorter than the tokens "
    "that are ignored: a cross entropy of no rows.",
    fix="Reduce with `mean_tokens` or `mean_sequences`: 0 with gradient 0 where there is nothing.",
)
def empty(lab: TinyLab) -> Outcome:
    """Rows without scored tokens, some or all of them, give a finite loss and gradient."""
    for ignored in (2, _TOO_LONG):
        changed = {"ignore_first_answer_tokens": ignored}
        method = type(lab.method).model_validate({**lab.method.model_dump(), **changed})
        found, loss = _finite_through_the_model(TinyLab(method))
        if found:
            return fault(f"{found} with ignore_first_answer_tokens: {ignored}")
    return passed(f"loss {loss:.6g} with nothing to forget")


def _finite_through_the_model(lab: TinyLab) -> tuple[str, float]:
    measured = lab.measure()
    found = "" if measured.flat.isfinite().all() else "the gradient is not finite"
    found = found if math.isfinite(measured.loss) else f"the loss is {measured.loss}"
    return found, measured.loss


@check(
    "reference",
    why="A reference that is not the start model, or another scale, shows here at once: TOFU's DPO "
    "has a factor 1 where the NPO repository has 2/β, so that rates mean different things.",
    fix="Compare the loss with its equation at a log-ratio of 0.",
)
def reference(lab: TinyLab) -> Outcome:
    """At the start model the loss has its declared value."""
    declared = lab.method.value_at_reference()
    if declared is None:
        return Outcome("not declared", "the method does not define value_at_reference")
    measured = lab.measure(model=lab.start)
    expected: Mapping[str, float]
    expected = declared if isinstance(declared, Mapping) else {"the loss": declared}
    got = {**measured.terms, "the loss": measured.loss}
    for name, value in expected.items():
        if name not in got:
            return fault(
                f"value_at_reference names the term {name!r}, which the loss does not have"
            )
        if not abs(got[name] - value) <= 1e-9 * max(abs(value), 1.0):
            return fault(f"{name} is {got[name]:.9g}, declared as {value:.9g}")
    return passed(", ".join(f"{name} is {value:.6g}" for name, value in expected.items()))


@check(
    "step",
    why="A loss that is detached in the wrong place, or has a gradient derived wrongly by hand, "
    "trains something other than the loss it reports.",
    fix="Detach the constants of the equation by `.detach()` (this check cannot see `no_grad`), "
    "and nothing else; draw no random numbers in `loss`.",
)
def step(lab: TinyLab) -> Outcome:
    """A small step lowers the loss as the gradient predicts, with detached values constant."""
    model, fixed = lab.model.copied(), FixedDetached(lab.objective)
    before = fixed.terms(next(lab.batches([lab.draws], model)))
    torch.stack([*before.values()]).sum().backward()
    layers, length = lab.model.config.num_hidden_layers, 1e-5
    trained = [p for n, p in model.named_parameters() if lab.method.trains(n, layers)]
    norm = float(torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None]))
    if norm == 0:
        return fault("the gradient is zero: nothing would be trained")
    torch.optim.SGD(trained, length / norm).step()
    after = fixed.terms(next(lab.batches([lab.draws], model)))
    fall = sum((before[name] - after[name]).item() for name in before)
    seen = f"it falls by {fall:.4g}, the gradient predicts {length * norm:.4g}"
    return passed(seen) if 0.5 < fall / (length * norm) < 2 else fault(seen)


@check(
    "direction",
    why="Signs are easily confused (NPO repository #8), and winner and loser in DPO: the method "
    "then teaches what it should forget, while its curves look well trained.",
    fix="The loss has to grow with the log-probability of forget answers, and of no others.",
)
def direction(lab: TinyLab) -> Outcome:
    """Training makes forget answers less likely, and the answers to learn more likely."""
    batch = freed(lab.batch())
    loss = lab.total(batch)
    seen: list[str] = []
    for part, (slope, *_) in slopes(loss, batch).items():
        if part == "sample" or part in lab.needs.scores:
            continue  # rewards or scores decide
        labels = batch.parts[part].labels
        push = float(slope.gather(1, labels.unsqueeze(1)).sum())
        if not push or not _reads_labels(lab, batch, part, loss.item()):
            continue
        falls = (part == "forget") != (lab.method.update_scale() < 0)
        if (push > 0) != falls:
            way = "less" if push > 0 else "more"
            return fault(f"the answers of part {part!r} become {way} likely")
        seen.append(f"{part} {'less' if push > 0 else 'more'} likely")
    scaled = " (the update is then reversed)" if lab.method.update_scale() < 0 else ""
    return passed(", ".join(seen) + scaled) if seen else not_applicable("it reads no true answers")


def _reads_labels(lab: TinyLab, batch: LossBatch, part: Part, loss: float) -> bool:
    predictions = batch.parts[part]
    other = Token(predictions.logits, (predictions.labels + 1) % VOCABULARY)
    return lab.total(freed(batch, {part: other})).item() != loss


@check(
    "bf16",
    why="Large models train in bfloat16, with 8 bits for a log-probability: a difference of two "
    "large sums has none of them left.",
    fix="Stay in the type that the primitives return, float32; do not cast down.",
)
def bf16(lab: TinyLab) -> Outcome:
    """Loss and gradient in bfloat16 are close to those in float32."""
    exact, rough = (lab.like(dtype=kind).measure() for kind in (torch.float32, torch.bfloat16))
    cosine = float(exact.flat @ rough.flat) / (exact.norm * rough.norm or 1.0)
    gap = abs(exact.loss - rough.loss)
    seen = f"loss {exact.loss:.5g} and {rough.loss:.5g}, cosine of the gradients {cosine:.4f}"
    near = gap <= 0.1 * max(abs(exact.loss), exact.norm) and cosine >= 0.9
    return passed(seen) if near else fault(seen)
