"""Checks of what a loss scores, of its value, and that everything declared has an effect.

A loss may leave out a token depending on its prediction (a hinge, the k likeliest), so every token
is probed under several predictions; it is a fault only if none of them gives it a gradient.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unlearnbench.api.method import LossBatch, Method, Needs, Part, Terms
from unlearnbench.losses.predictions import Predictions, Reference
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed
from unlearnbench.testing.probes import FixedDetached, Token, freed, slopes
from unlearnbench.testing.step_checks import NEAR, apart
from unlearnbench.testing.tiny_lab import END, VOCABULARY, TinyLab
from unlearnbench.training.objective import called


@check()
def prompt(lab: TinyLab) -> Outcome:
    """Predictions of prompt tokens have no gradient.

    TOFU's KL and UNDIAL average over the prompt: the method then unlearns the question, and
    templates, as much as the answer.

    Use the tensors of `batch`; they contain no prompt tokens.
    """
    lab.measure()
    counted, gradients = 0, _gradients(lab)
    if not gradients:
        return fault("the loss has no gradient at any position")
    for gradient in gradients:
        for row, line in zip(lab.sequences, gradient, strict=True):
            faults = line[: row.start - 1].ne(0).nonzero().flatten().tolist()
            if faults:
                return fault(
                    f"the prediction of prompt token {faults[0] + 2} of {row.start} has a gradient"
                )
            counted += row.start - 1
    return passed(f"zero at {counted} prompt positions")


@check()
def shift(lab: TinyLab) -> Outcome:
    """The label at t is scored by the logits at t − 1, and by no others.

    PDU in open-unlearning masks unshifted: it scores the position after each answer token. CE-U's
    first-token rule began as such a bug.

    Row n of `logits`, `labels` and `token_logprob` is one token: do not roll or slice them.
    """
    lab.measure()
    for gradient in _gradients(lab):
        for row, line in zip(lab.sequences, gradient, strict=True):
            if bool(line[len(row.ids) - 1 :].any()):
                return fault("the position after the last answer token has a gradient")
    embedding = torch.as_tensor(lab.model.get_input_embeddings().weight).grad
    if embedding is not None and bool(embedding[END].any()):
        return fault("the last token of an answer is a target only, but has a gradient as an input")
    plain, renamed = _renumbered(lab, by_position=True)
    if apart(plain, renamed, 1e-3 * NEAR):
        return fault(
            f"loss {plain:.6g}, but {renamed:.6g} after each position's vocabulary was renumbered: "
            "a label is scored by the logits of another position"
        )
    return passed("only t − 1 counts, each with its own label")


def _gradients(lab: TinyLab) -> list[Tensor]:
    """[B, T] bool, True at nonzero gradients; one for each hidden state that a loss can read."""
    result = [tensor.grad for tensor in lab.model.states if tensor.requires_grad]
    return [gradient.ne(0).any(dim=2) for gradient in result if gradient is not None]


def _renumbered(lab: TinyLab, *, by_position: bool) -> tuple[float, float]:
    """The loss, and that in another numbering of the vocabulary, of all or at each position.

    With a numbering for each position the loss changes if a label or a reference is used at another
    position than its own.
    """
    batch, generator = lab.batch(), torch.Generator().manual_seed(11)
    tokens: dict[Part, Token] = {}
    for part, predictions in batch.parts.items():
        count = len(predictions.labels)
        names = torch.rand(count, VOCABULARY, generator=generator).argsort(dim=1)
        names = names if by_position else names[:1].expand(count, -1)
        start, text = batch.reference.parts.get(part), predictions.text_tokens
        tokens[part] = Token(
            _renamed(predictions.logits, names),
            names.gather(1, predictions.labels.unsqueeze(1)).squeeze(1),
            None if start is None or start.hidden is None else _renamed(start.logits, names),
            [_renamed(r.logits, names) for r in batch.reference.prompted if part == "forget"],
            None if text is None else names.gather(1, text.unsqueeze(1)).squeeze(1),
        )
    return lab.total(freed(batch)).item(), lab.total(freed(batch, tokens)).item()


def _renamed(logits: Tensor, names: Tensor) -> Tensor:
    """[N, V] with entry v of row n moved to `names[n, v]`."""
    return torch.empty_like(logits).scatter(1, names, logits)


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
    plain, renamed = _renumbered(lab, by_position=False)
    if apart(plain, renamed, 1e-3 * NEAR):
        return fault(f"loss is {plain:.6g} as it is, {renamed:.6g} with the vocabulary renumbered")
    return passed(f"loss {plain:.6g} in another numbering")


_GAP = 1e4
_TOO_LONG = 99
"""More first tokens to ignore than any answer has."""


@check()
def extremes(lab: TinyLab) -> Outcome:
    """Loss and gradient are finite for logits ±10 000 from the rest, in fp32 and bf16.

    −log(1 − p) is infinite as soon as p rounds to 1, at a logit gap of 17 in float32: memorised
    answers, the ones to unlearn, are that likely.

    Start from `log_odds`, `token_logprob` or a primitive; avoid log(1 − exp(…)) and p / q.
    """
    tried = 0
    for kind in (torch.float32, torch.bfloat16):
        batch = lab.like(dtype=kind).batch()
        for gap in (_GAP, -_GAP):
            for masked in (False, True):
                tokens: dict[Part, Token] = {
                    name: _extreme(part, gap, masked=masked, kind=kind)
                    for name, part in batch.parts.items()
                }
                finite = _not_finite(lab, freed(batch, tokens))
                if finite:
                    mask = ", with a masked vocabulary entry" if masked else ""
                    name = str(kind).removeprefix("torch.")
                    return fault(f"{finite} at the label's logit {gap:+g} in {name}{mask}")
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


@check()
def one_token(lab: TinyLab) -> Outcome:
    """Answers of a single token give a finite loss and gradient.

    Answers of one token (an EOS alone, after a template has eaten the rest) make means over
    nothing, and standard deviations of one.

    Divide by counts that are at least 1, as `mean_rows` does.
    """
    result, loss = _finite_through_the_model(lab.like(lengths=(1, 1, 1)))
    return fault(result) if result else passed(f"loss {loss:.6g}")


@check()
def empty(lab: TinyLab) -> Outcome:
    """Rows without scored tokens, some or all of them, give a finite loss and gradient.

    CE-U elsewhere gives NaN when every answer of a micro-batch is shorter than the tokens that are
    ignored: a cross entropy of no rows.

    Reduce with `mean_tokens` or `mean_sequences`: 0 with gradient 0 where there is nothing.
    """
    for ignored in (2, _TOO_LONG):
        changed = {"ignore_first_answer_tokens": ignored}
        method = type(lab.method).model_validate({**lab.method.model_dump(), **changed})
        result, loss = _finite_through_the_model(TinyLab(method))
        if result:
            return fault(f"{result} with ignore_first_answer_tokens: {ignored}")
    return passed(f"loss {loss:.6g} with nothing to forget")


def _finite_through_the_model(lab: TinyLab) -> tuple[str, float]:
    measured = lab.measure()
    result = "" if measured.flat.isfinite().all() else "the gradient is not finite"
    result = result if math.isfinite(measured.loss) else f"the loss is {measured.loss}"
    return result, measured.loss


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


@check()
def step(lab: TinyLab) -> Outcome:
    """A small step lowers the loss as the gradient predicts, with detached values constant.

    A loss that is detached in the wrong place, or has a gradient derived wrongly by hand, trains
    something other than the loss it reports.

    Detach the constants of the equation by `.detach()` (this check cannot see `no_grad`), and
    nothing else; draw no random numbers in `loss`.
    """
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


_FALLS = frozenset[Part]({"forget", "whole", "retain_refusal"})


@check()
def direction(lab: TinyLab) -> Outcome:
    """Training makes forget answers less likely, and the answers to learn more likely.

    Signs are easily confused (NPO repository #8), and winner and loser in DPO: the method then
    teaches what it should forget, while its curves look well trained.

    The loss has to grow with the log-probability of forget answers, and of no others.
    """
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
        falls = (part in _FALLS) != (lab.method.update_scale() < 0)
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


@check()
def bf16(lab: TinyLab) -> Outcome:
    """Loss and gradient in bfloat16 are close to those in float32.

    Large models train in bfloat16, with 8 bits for a log-probability: a difference of two large
    sums has none of them left.

    Stay in the type that the primitives return, float32; do not cast down.
    """
    exact, rough = (lab.like(dtype=kind).measure() for kind in (torch.float32, torch.bfloat16))
    cosine = float(exact.flat @ rough.flat) / (exact.norm * rough.norm or 1.0)
    gap = abs(exact.loss - rough.loss)
    seen = f"loss {exact.loss:.5g} and {rough.loss:.5g}, cosine of the gradients {cosine:.4f}"
    near = gap <= 0.1 * max(abs(exact.loss), exact.norm) and cosine >= 0.9
    return passed(seen) if near else fault(seen)


_DRAWS = 6
_MOVED = 3.0
"""Added to logits: p = 0.5 becomes 0.95 or 0.05."""


@check()
def needs(lab: TinyLab) -> Outcome:
    """The declared needs are exactly what the loss reads.

    open-unlearning keeps a copy of the model for methods that never read it (WGA, SatImp), and pays
    a forward pass for retain rows with weight 0.

    Declare in `needs` what `loss` and `statistics` read, and nothing else.
    """
    subset = lab.needs
    if result := _inconsistent(lab.method, subset):
        return fault(result)
    unread: set[str] | None = None
    for state in lab.states():
        batch = next(lab.batches([lab.draws], state=state))
        with called(lab.method, "loss"):
            lab.method.loss(batch)  # reads nothing undeclared, which is not there
        left = {
            name
            for name, less in _without(batch, subset)
            if not _reads(lab.method.loss, batch, less)
        }
        sums = lab.batch(state)
        for part in subset.statistics:
            less = replace(sums, parts={p: v for p, v in sums.parts.items() if p != part})
            if not _reads(lab.method.statistics, sums, less):
                left.add(f"statistics of {part!r}")
        unread = left if unread is None else unread & left
    if unread:
        return fault("; ".join(f"declares {name}, which it never reads" for name in sorted(unread)))
    seen = sorted(
        {*subset.parts, *subset.statistics, *(f"reference({part})" for part in subset.reference)}
    )
    return passed(f"reads {', '.join(seen)}, as declared")


def _reads(
    function: Callable[[LossBatch], Tensor | Terms], batch: LossBatch, less: LossBatch
) -> bool:
    """True if a function of the method does not get by with `less` than a batch."""
    try:
        return _numbers(function(batch)) != _numbers(function(less))
    except Exception:  # what it reads is not there
        return True


def _numbers(values: Tensor | Terms) -> dict[str, Any]:
    terms = values if isinstance(values, Mapping) else {"loss": values}
    return {name: value.tolist() for name, value in terms.items()}


def _without(batch: LossBatch, needs: Needs) -> Iterator[tuple[str, LossBatch]]:
    """Everything that is declared for the loss, with a batch that lacks it."""
    parts, references = batch.parts, batch.reference.parts
    for part in needs.parts:
        yield f"the part {part!r}", replace(batch, parts={p: parts[p] for p in parts if p != part})
    for part in needs.scores & parts.keys():
        yield f"scores of {part!r}", _changed(batch, part, scores=None)
    for name, field, declared in _references(needs):
        for part in declared & references.keys():
            yield f"{name} of {part!r}", _reference_changed(batch, part, field, lambda _: None)
    for layer in needs.layers:
        less = batch
        for part in parts:
            states = {n: state for n, state in parts[part].states.items() if n != layer}
            less = _changed(less, part, states=states)
        yield f"layer {layer}", less
    if needs.samples:
        yield "the rewards", replace(batch, rewards=None)


def _references(needs: Needs) -> tuple[tuple[str, str, Set[Part]], ...]:
    """Kinds of values of the start model: name, field of `Reference`, parts that declare it."""
    return (
        ("log-probabilities", "token_logprob", needs.logprobs),
        ("distributions", "hidden", needs.distributions),
        ("states", "states", needs.states),
    )


def _changed(batch: LossBatch, part: Part, **changes: Any) -> LossBatch:
    return replace(batch, parts={**batch.parts, part: replace(batch.parts[part], **changes)})


def _reference_changed(
    batch: LossBatch, part: Part, field: str, change: Callable[[Any], Any]
) -> LossBatch:
    old: Any = batch.reference.parts[part]
    value = getattr(old, field)
    if isinstance(value, Mapping):
        new: Any = {layer: change(state) for layer, state in value.items()}
    else:
        new = change(value)
    changed: dict[Part, Reference] = {**batch.reference.parts, part: replace(old, **{field: new})}
    return replace(batch, reference=replace(batch.reference, parts=changed))


def _inconsistent(method: Method, subset: Needs) -> str:
    """Describe a contradiction within the declarations; empty if there is none."""
    most = type(method).needs
    for name in ("parts", "logprobs", "distributions", "states", "statistics", "scores"):
        if beyond := sorted(set(getattr(subset, name)) - set(getattr(most, name))):
            return f"needed() asks for {name} {beyond}, which the class's `needs` does not name"
    for part, options in (("alternative", subset.alternatives), ("sample", subset.samples)):
        if (part in subset.all_parts) != (options is not None):
            return f"the part {part!r} and its settings belong together: declare both or neither"
    if subset.samples is not None:
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
    reached = _reached(lab)
    dead = [repr(part) for part, tokens in reached.items() if not bool(tokens.any())]
    seen = f"no gradient ever reaches {' and '.join(dead)}"
    return fault(seen) if dead else passed(f"{', '.join(reached)} under {_DRAWS + 3} predictions")


@check()
def tokens(lab: TinyLab) -> Outcome:
    """Every scored token has a gradient.

    Answers are scored token by token; a slice or a mask that leaves some out unlearns less than the
    answer, and the loss does not show it.

    Do not slice or mask tokens; the first ones are left out by `ignore_first_answer_tokens`.
    """
    counted = 0
    for part, reached in _reached(lab).items():
        dead = (~reached).nonzero().flatten().tolist()
        if not bool(reached.any()):
            continue  # reported by the check `parts`
        if dead:
            return fault(
                f"{len(dead)} of {len(reached)} scored tokens of part {part!r} never have a "
                f"gradient, such as token {dead[0] + 1}"
            )
        counted += len(reached)
    if not counted:
        return not_applicable("no part has a gradient")
    return passed(f"{counted} tokens under {_DRAWS + 3} predictions")


@lru_cache(maxsize=1)  # for `parts` and `tokens`
def _reached(lab: TinyLab) -> dict[Part, Tensor]:
    """[N] bool by part: True if a token has a gradient under any of several predictions."""
    reached: dict[Part, Tensor] = {
        part: torch.zeros(len(item.labels), dtype=torch.bool)
        for part, item in lab.batch().parts.items()
        if part in lab.needs.parts
    }
    for batch in _probes(lab):
        if all(bool(tokens.all()) for tokens in reached.values()):
            break
        result = slopes(lab.total(batch), batch)
        for part, tokens in reached.items():
            for slope in result[part]:
                tokens |= slope.ne(0).any(dim=1)
    return reached


def _probes(lab: TinyLab) -> Iterator[LossBatch]:
    """Batches with free logits: unchanged, with all labels more and less likely, and with noise; in
    every state the method passes through."""
    generator = torch.Generator().manual_seed(13)
    for state in lab.states():
        batch = lab.batch(state)
        yield freed(batch)
        for draw in range(2 + _DRAWS):
            tokens: dict[Part, Token] = {}
            for part, item in batch.parts.items():
                move = torch.randn(item.logits.shape, generator=generator, dtype=torch.float64)
                if draw < 2:
                    move = (1 - 2 * draw) * one_hot(item.labels, VOCABULARY)
                tokens[part] = Token(item.logits + _MOVED * move, item.labels)
            yield freed(batch, tokens)


def _gradient(lab: TinyLab, batch: LossBatch, *parts: Part) -> tuple[float, Tensor]:
    """The loss of a freed batch, and its gradient in the leaves of `parts` as one vector."""
    loss = lab.total(batch)
    result = slopes(loss, batch)
    return loss.item(), torch.cat([slope.flatten() for part in parts for slope in result[part]])


@check()
def references(lab: TinyLab) -> Outcome:
    """Every declared reference changes the loss or its gradient when it is shifted.

    A reference that is read and then lost (detached into nothing, weighed by 0, cancelled) costs a
    copy of the model, and the method no longer computes its equation.

    Follow the reference through the loss; leave it out of `needs` where it has no effect.
    """
    seen: list[str] = []
    for name, field, declared in _references(lab.needs):
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
    noisy = partial(_noisy, generator=torch.Generator().manual_seed(17))
    for batch in _probes(lab):
        if part not in batch.reference.parts:
            return True  # reported by the check `needs`
        item, slope = _gradient(lab, batch, *batch.parts)
        moved = _reference_changed(batch, part, field, noisy)
        other, changed = _gradient(lab, moved, *batch.parts)
        if item != other or not torch.equal(slope, changed):
            return True
    return False


def _noisy(value: Tensor, generator: torch.Generator) -> Tensor:
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
    doubled = batch
    for part, rows in batch.parts.items():
        if part != "retain":  # as where another micro-batch has as many rows again
            counts = {"step_tokens": 2 * rows.step_tokens, "step_rows": 2 * rows.step_rows}
            doubled = _changed(doubled, part, **counts)
    item, two = (_gradient(lab, each, "retain")[1] for each in (batch, doubled))
    once, twice = float(item.norm()), float(two.norm())
    if not once:
        return not_applicable("the retain rows have no gradient")
    if float((item - two).norm()) <= NEAR * max(once, twice):
        return passed(f"gradient norm {once:.6g} with the forget rows once and twice")
    # A mean over the union of the parts weighs them by their counts, by definition.
    gaps = [float((share * item - two).norm()) for share in _shares(batch)]
    if min(gaps) <= NEAR * max(once, twice):
        return passed("the loss is a mean over the union of the parts, weighed by their counts")
    return fault(
        f"the retain rows' gradient has norm {once:.6g} with the forget rows once, "
        f"{twice:.6g} with them twice"
    )


def _shares(batch: LossBatch) -> Iterator[float]:
    """Factors on the retain rows' weight in a mean over all tokens or rows, others doubled."""
    retain, others = batch.retain, [part for p, part in batch.parts.items() if p != "retain"]
    for some in (others, [batch.forget]):
        for part, more in (
            (retain.step_tokens, sum(item.step_tokens for item in some)),
            (retain.step_rows, sum(item.step_rows for item in some)),
        ):
            yield (part + more) / (part + 2 * more)
