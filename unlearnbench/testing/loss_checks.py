"""Checks of what a loss scores, of its value, and of the direction in which it trains."""

import math
from collections.abc import Mapping
from itertools import product

import torch
from torch import Tensor

from unlearnbench.api.method import LossBatch, Part
from unlearnbench.losses.predictions import Predictions
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed
from unlearnbench.testing.probes import FixedDetached, Token, freed, slopes
from unlearnbench.testing.step_checks import NEAR, apart
from unlearnbench.testing.tiny_lab import END, VOCABULARY, Measured, TinyLab


@check()
def prompt(lab: TinyLab) -> Outcome:
    """Predictions of prompt tokens have no gradient.

    TOFU's KL and UNDIAL average over the prompt: the method then unlearns the question, and
    templates, as much as the answer.

    Use the tensors of `batch`; they contain no prompt tokens.
    """
    lab.measure()
    gradients = _has_gradient(lab)
    if not gradients:
        return fault("the loss has no gradient at any position")
    prompt_positions = 0
    for has_gradient in gradients:
        for row, has_gradient_at in zip(lab.sequences, has_gradient, strict=True):
            # Position t predicts token t + 1, so that position `start - 1` predicts the answer.
            positions = has_gradient_at[: row.start - 1].nonzero().flatten().tolist()
            if positions:
                # People count tokens from 1.
                token = positions[0] + 2
                return fault(
                    f"the prediction of prompt token {token} of {row.start} has a gradient"
                )
            prompt_positions += row.start - 1
    return passed(f"zero at {prompt_positions} prompt positions")


@check()
def shift(lab: TinyLab) -> Outcome:
    """The label at t is scored by the logits at t − 1, and by no others.

    PDU in open-unlearning masks unshifted: it scores the position after each answer token. CE-U's
    first-token rule began as such a bug.

    Row n of `logits`, `labels` and `token_logprob` is one token: do not roll or slice them.
    """
    lab.measure()
    for has_gradient in _has_gradient(lab):
        for row, has_gradient_at in zip(lab.sequences, has_gradient, strict=True):
            if bool(has_gradient_at[len(row.ids) - 1 :].any()):
                return fault("the position after the last answer token has a gradient")
    embedding_gradient = torch.as_tensor(lab.model.get_input_embeddings().weight).grad
    if embedding_gradient is not None and bool(embedding_gradient[END].any()):
        return fault("the last token of an answer is a target only, but has a gradient as an input")
    plain, renamed = _losses_renumbered(lab, by_position=True)
    if apart(plain, renamed, 1e-3 * NEAR):
        return fault(
            f"loss {plain:.6g}, but {renamed:.6g} after each position's vocabulary was renumbered: "
            "a label is scored by the logits of another position"
        )
    return passed("only t − 1 counts, each with its own label")


def _has_gradient(lab: TinyLab) -> list[Tensor]:
    """Return where gradients of the last measurement are not zero.

    Returns:
        A bool tensor [B, T] for each hidden state that a loss can read and that has a gradient.
    """
    gradients = [state.grad for state in lab.model.states if state.requires_grad]
    return [gradient.ne(0).any(dim=2) for gradient in gradients if gradient is not None]


def _losses_renumbered(lab: TinyLab, *, by_position: bool) -> tuple[float, float]:
    """Return the loss as it is, and the loss with another numbering of the vocabulary.

    The numbers of tokens have no meaning, so a right loss does not depend on them.

    Args:
        lab: With the loss.
        by_position: Whether each position has a numbering of its own. Then the loss changes if a
            label or a reference is used at another position than its own.
    """
    batch = lab.batch()
    generator = torch.Generator().manual_seed(11)
    tokens: dict[Part, Token] = {}
    for part, predictions in batch.parts.items():
        count = len(predictions.labels)
        numbers = torch.rand(count, VOCABULARY, generator=generator).argsort(dim=1)
        if not by_position:
            numbers = numbers[:1].expand(count, -1)
        start = batch.reference.parts.get(part)
        reference = None
        if start is not None and start.hidden is not None:
            reference = _renumbered_logits(start.logits, numbers)
        prompted = batch.reference.prompted if part == "forget" else []
        text = predictions.text_tokens
        tokens[part] = Token(
            logits=_renumbered_logits(predictions.logits, numbers),
            labels=_renumbered_tokens(predictions.labels, numbers),
            reference=reference,
            prompted=[_renumbered_logits(values.logits, numbers) for values in prompted],
            text=None if text is None else _renumbered_tokens(text, numbers),
        )
    return lab.total(freed(batch)).item(), lab.total(freed(batch, tokens)).item()


def _renumbered_logits(logits: Tensor, numbers: Tensor) -> Tensor:
    """Return [N, V] with the logit of token v in row n moved to `numbers[n, v]`."""
    return torch.empty_like(logits).scatter(1, numbers, logits)


def _renumbered_tokens(tokens: Tensor, numbers: Tensor) -> Tensor:
    """Return [N] with token v in row n replaced by `numbers[n, v]`."""
    return numbers.gather(1, tokens.unsqueeze(1)).squeeze(1)


@check()
def labels(lab: TinyLab) -> Outcome:
    """Every token id is ordinary: −100 is never a label, and no label an index outside its row.

    UNDIAL in open-unlearning uses the label −100 of every unscored position as an index: it
    penalises vocabulary entry V − 100 everywhere.

    Index with `labels` only; no token id is special, and none is negative.
    """
    for part, predictions in lab.batch().parts.items():
        outside = (predictions.labels < 0) | (predictions.labels >= VOCABULARY)
        if bool(outside.any()):
            return fault(f"{part}: label {int(predictions.labels[outside][0])} is not a token")
    plain, renamed = _losses_renumbered(lab, by_position=False)
    if apart(plain, renamed, 1e-3 * NEAR):
        return fault(f"loss is {plain:.6g} as it is, {renamed:.6g} with the vocabulary renumbered")
    return passed(f"loss {plain:.6g} in another numbering")


_GAP = 1e4
"""Difference between the label's logit and all others."""
_TOO_LONG = 99
"""More first tokens to ignore than any answer has."""


@check()
def extremes(lab: TinyLab) -> Outcome:
    """Loss and gradient are finite for logits ±10 000 from the rest, in fp32 and bf16.

    −log(1 − p) is infinite as soon as p rounds to 1, at a logit gap of 17 in float32: memorised
    answers, the ones to unlearn, are that likely.

    Start from `log_odds`, `token_logprob` or a primitive; avoid log(1 − exp(…)) and p / q.
    """
    cases = 0
    for dtype in (torch.float32, torch.bfloat16):
        batch = lab.like(dtype=dtype).batch()
        for gap, masked in product((_GAP, -_GAP), (False, True)):
            tokens: dict[Part, Token] = {
                part: _extreme(predictions, gap, masked=masked, dtype=dtype)
                for part, predictions in batch.parts.items()
            }
            not_finite = _not_finite(lab, freed(batch, tokens))
            if not_finite:
                mask = ", with a masked vocabulary entry" if masked else ""
                name = str(dtype).removeprefix("torch.")
                return fault(f"{not_finite} at the label's logit {gap:+g} in {name}{mask}")
            cases += 1
    return passed(f"finite in {cases} cases")


def _extreme(predictions: Predictions, gap: float, *, masked: bool, dtype: torch.dtype) -> Token:
    """Return tokens of which one model is sure, and the other one is sure of their opposite.

    Args:
        predictions: Whose labels and other logits stay.
        gap: Logit of the label. It is `-gap` in the start model.
        masked: Whether the logit of one other token is −∞, as in a masked vocabulary.
        dtype: Of all logits.
    """
    label = predictions.labels.unsqueeze(1)
    logits = predictions.logits.scatter(1, label, gap).to(dtype)
    reference = predictions.logits.scatter(1, label, -gap).to(dtype)
    if masked:
        other_token = (label + 1) % VOCABULARY
        logits = logits.scatter(1, other_token, -torch.inf)
        reference = reference.scatter(1, other_token, -torch.inf)
    return Token(logits, predictions.labels, reference)


def _not_finite(lab: TinyLab, batch: LossBatch) -> str:
    """Say what is not finite, the loss or a gradient in its logits; empty if all is finite."""
    loss = lab.total(batch)
    if not loss.isfinite():
        return f"the loss is {loss.item()}"
    for part, (slope, *_) in slopes(loss, batch).items():
        if not slope.isfinite().all():
            return f"the gradient of part {part!r} is not finite"
    return ""


@check()
def one_token(lab: TinyLab) -> Outcome:
    """Answers of a single token give a finite loss and gradient.

    Answers of one token (an EOS alone, after a template has eaten the rest) make means over
    nothing, and standard deviations of one.

    Divide by counts that are at least 1, as `mean_rows` does.
    """
    measured = lab.like(lengths=(1, 1, 1)).measure()
    not_finite = _not_finite_through_model(measured)
    return fault(not_finite) if not_finite else passed(f"loss {measured.loss:.6g}")


@check()
def empty(lab: TinyLab) -> Outcome:
    """Rows without scored tokens, some or all of them, give a finite loss and gradient.

    CE-U elsewhere gives NaN when every answer of a micro-batch is shorter than the tokens that are
    ignored: a cross entropy of no rows.

    Reduce with `mean_tokens` or `mean_sequences`: 0 with gradient 0 where there is nothing.
    """
    loss = math.nan
    # Some rows have two tokens or fewer, and no row has as many as `_TOO_LONG`.
    for ignored in (2, _TOO_LONG):
        settings = {**lab.method.model_dump(), "ignore_first_answer_tokens": ignored}
        measured = TinyLab(type(lab.method).model_validate(settings)).measure()
        not_finite = _not_finite_through_model(measured)
        if not_finite:
            return fault(f"{not_finite} with ignore_first_answer_tokens: {ignored}")
        loss = measured.loss
    return passed(f"loss {loss:.6g} with nothing to forget")


def _not_finite_through_model(measured: Measured) -> str:
    """Say what is not finite, the loss or the gradient of the weights; empty if all is finite."""
    if not math.isfinite(measured.loss):
        return f"the loss is {measured.loss}"
    if not measured.flat.isfinite().all():
        return "the gradient is not finite"
    return ""


@check()
def reference(lab: TinyLab) -> Outcome:
    """At the start model the loss has its declared value.

    A reference that is not the start model, or another scale, shows here at once: TOFU's DPO has a
    factor 1 where the NPO repository has 2/β, so that rates mean different things.

    Compare the loss with its equation at a log-ratio of 0.
    """
    declared = lab.method.value_at_reference()
    if declared is None:
        return Outcome("not declared", "the method does not define value_at_reference")
    # A method declares the value of its loss, or of each term.
    expected: Mapping[str, float]
    expected = declared if isinstance(declared, Mapping) else {"the loss": declared}
    measured = lab.measure(model=lab.start)
    computed = {**measured.terms, "the loss": measured.loss}
    for name, value in expected.items():
        if name not in computed:
            return fault(
                f"value_at_reference names the term {name!r}, which the loss does not have"
            )
        # Negated, so that NaN is a fault.
        if not abs(computed[name] - value) <= 1e-9 * max(abs(value), 1.0):
            return fault(f"{name} is {computed[name]:.9g}, declared as {value:.9g}")
    return passed(", ".join(f"{name} is {value:.6g}" for name, value in expected.items()))


@check()
def step(lab: TinyLab) -> Outcome:
    """A small step lowers the loss as the gradient predicts, with detached values constant.

    A loss that is detached in the wrong place, or has a gradient derived wrongly by hand, trains
    something other than the loss it reports.

    Detach the constants of the equation by `.detach()` (this check cannot see `no_grad`), and
    nothing else; draw no random numbers in `loss`.
    """
    model = lab.model.copied()
    objective = FixedDetached(lab.objective)
    before = objective.terms(next(lab.batches([lab.draws], model)))
    torch.stack([*before.values()]).sum().backward()
    layers = lab.model.config.num_hidden_layers
    trained = [
        parameter for name, parameter in model.named_parameters() if lab.method.trains(name, layers)
    ]
    gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients))
    if norm == 0:
        return fault("the gradient is zero: nothing would be trained")

    # With learning rate `_STEP / norm`, the weights move by `_STEP`.
    torch.optim.SGD(trained, _STEP / norm).step()
    after = objective.terms(next(lab.batches([lab.draws], model)))
    fall = sum((before[name] - after[name]).item() for name in before)
    predicted_fall = _STEP * norm
    seen = f"it falls by {fall:.4g}, the gradient predicts {predicted_fall:.4g}"
    return passed(seen) if 0.5 < fall / predicted_fall < 2 else fault(seen)


_STEP = 1e-5
"""Length of a step in the space of weights, so short that the loss is almost linear along it."""
_PARTS_TO_FORGET = frozenset[Part]({"forget", "whole", "retain_refusal"})
"""Parts whose answers should become less likely. The answers of all others are to be learned."""


@check()
def direction(lab: TinyLab) -> Outcome:
    """Training makes forget answers less likely, and the answers to learn more likely.

    Signs are easily confused (NPO repository #8), and winner and loser in DPO: the method then
    teaches what it should forget, while its curves look well trained.

    The loss has to grow with the log-probability of forget answers, and of no others.
    """
    batch = freed(lab.batch())
    loss = lab.total(batch)
    # A negative scale turns the update of the weights round after the step.
    is_reversed = lab.method.update_scale() < 0
    directions: list[str] = []
    for part, (slope, *_) in slopes(loss, batch).items():
        if part == "sample" or part in lab.needs.scores:
            # Rewards or scores decide on the direction for each answer.
            continue
        labels = batch.parts[part].labels
        slope_of_labels = float(slope.gather(1, labels.unsqueeze(1)).sum())
        if not slope_of_labels or not _reads_labels(lab, batch, part, loss.item()):
            continue
        # A step against the gradient lowers logits in which the loss grows.
        becomes_less_likely = slope_of_labels > 0
        should_become_less_likely = (part in _PARTS_TO_FORGET) != is_reversed
        word = "less" if becomes_less_likely else "more"
        if becomes_less_likely != should_become_less_likely:
            return fault(f"the answers of part {part!r} become {word} likely")
        directions.append(f"{part} {word} likely")
    if not directions:
        return not_applicable("it reads no true answers")
    remark = " (the update is then reversed)" if is_reversed else ""
    return passed(", ".join(directions) + remark)


def _reads_labels(lab: TinyLab, batch: LossBatch, part: Part, loss: float) -> bool:
    """Whether the loss of a batch changes if the labels of a part are other tokens."""
    predictions = batch.parts[part]
    other_labels = Token(predictions.logits, (predictions.labels + 1) % VOCABULARY)
    return lab.total(freed(batch, {part: other_labels})).item() != loss


@check()
def bf16(lab: TinyLab) -> Outcome:
    """Loss and gradient in bfloat16 are close to those in float32.

    Large models train in bfloat16, with 8 bits for a log-probability: a difference of two large
    sums has none of them left.

    Stay in the type that the primitives return, float32; do not cast down.
    """
    exact = lab.like(dtype=torch.float32).measure()
    rough = lab.like(dtype=torch.bfloat16).measure()
    cosine = float(exact.flat @ rough.flat) / (exact.norm * rough.norm or 1.0)
    seen = f"loss {exact.loss:.5g} and {rough.loss:.5g}, cosine of the gradients {cosine:.4f}"
    # A loss may be 0, so that the norm of its gradient sets the scale.
    loss_is_near = abs(exact.loss - rough.loss) <= 0.1 * max(abs(exact.loss), exact.norm)
    return passed(seen) if loss_is_near and cosine >= 0.9 else fault(seen)
