"""Checks of the scored positions: answer tokens only, each by the logits one position before."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unlearnbench.api.method import LossBatch, Part
from unlearnbench.testing.check import Outcome, check, fault, passed
from unlearnbench.testing.free_logits import Token, freed
from unlearnbench.testing.invariance import NEAR, apart, difference
from unlearnbench.testing.tiny_lab import Measured, TinyLab
from unlearnbench.testing.tiny_model import END, VOCABULARY


@check(
    "prompt",
    why="TOFU's KL and UNDIAL average over the prompt: the method then unlearns the question, and "
    "templates, as much as the answer.",
    fix="Use the tensors of `batch`; they contain no prompt tokens.",
)
def prompt(lab: TinyLab) -> Outcome:
    """Predictions of prompt tokens have no gradient."""
    lab.measure()
    counted, gradients = 0, _gradients(lab)
    if not gradients:
        return fault("the loss has no gradient at any position")
    for gradient in gradients:
        for row, line in zip(lab.sequences, gradient, strict=True):
            wrong = line[: row.start - 1].ne(0).nonzero().flatten().tolist()
            if wrong:
                return fault(
                    f"the prediction of prompt token {wrong[0] + 2} of {row.start} has a gradient"
                )
            counted += row.start - 1
    return passed(f"zero at {counted} prompt positions")


@check(
    "shift",
    why="PDU in open-unlearning masks unshifted: it scores the position after each answer token. "
    "CE-U's first-token rule began as such a bug.",
    fix="Row n of `logits`, `labels` and `token_logprob` is one token: do not roll or slice them.",
)
def shift(lab: TinyLab) -> Outcome:
    """The label at t is scored by the logits at t − 1, and by no others."""
    lab.measure()
    for gradient in _gradients(lab):
        for row, line in zip(lab.sequences, gradient, strict=True):
            if bool(line[len(row.ids) - 1 :].any()):
                return fault("the position after the last answer token has a gradient")
    end = END if lab.names is None else int(lab.names[END])
    embedding = torch.as_tensor(lab.model.get_input_embeddings().weight).grad
    if embedding is not None and bool(embedding[end].any()):
        return fault("the last token of an answer is a target only, but has a gradient as an input")
    found = _mismatched(lab, lab.batch())
    return fault(found) if found else passed("only t − 1 counts, each with its own label")


def _gradients(lab: TinyLab) -> list[Tensor]:
    """[B, T] bool, True at nonzero gradients; one for each hidden state that a loss can read."""
    found = [tensor.grad for tensor in lab.model.states if tensor.requires_grad]
    return [gradient.ne(0).any(dim=2) for gradient in found if gradient is not None]


def _mismatched(lab: TinyLab, batch: LossBatch) -> str:
    """Renumber the vocabulary at each position separately: the loss changes only if a label or a
    reference is used at another position than its own; describes the change, or is empty."""
    generator = torch.Generator().manual_seed(11)
    tokens: dict[Part, Token] = {}
    for part, predictions in batch.parts.items():
        count = len(predictions.labels)
        names = torch.rand(count, VOCABULARY, generator=generator).argsort(dim=1)
        start = batch.reference.parts.get(part)
        tokens[part] = Token(
            _renamed(predictions.logits, names),
            names.gather(1, predictions.labels.unsqueeze(1)).squeeze(1),
            None if start is None or start.hidden is None else _renamed(start.logits, names),
        )
    plain, renamed = (lab.total(freed(batch, t)).item() for t in (None, tokens))
    if not apart(plain, renamed, 1e-3 * NEAR):
        return ""
    return (
        f"loss {plain:.6g}, but {renamed:.6g} after each position's vocabulary was renumbered: "
        "a label is scored by the logits of another position"
    )


def _renamed(logits: Tensor, names: Tensor) -> Tensor:
    """[N, V] with entry v of row n moved to `names[n, v]`."""
    return torch.empty_like(logits).scatter(1, names, logits)


@check(
    "labels",
    why="UNDIAL in open-unlearning uses the label −100 of every unscored position as an index: it "
    "penalises vocabulary entry V − 100 everywhere.",
    fix="Index with `labels` only; no token id is special, and none is negative.",
)
def labels(lab: TinyLab) -> Outcome:
    """Every token id is ordinary: −100 is never a label, and no label an index outside its row."""
    for part, predictions in lab.batch().parts.items():
        outside = (predictions.labels < 0) | (predictions.labels >= VOCABULARY)
        if bool(outside.any()):
            return fault(f"{part}: label {int(predictions.labels[outside][0])} is not a token")
    names = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(5))
    plain, renamed = lab.whole, lab.like(names=names).measure()
    found = difference(
        plain, _named_back(renamed, names), "as it is", "with the vocabulary renumbered"
    )
    return fault(found) if found else passed(f"loss {plain.loss:.6g} in another numbering")


def _named_back(measured: Measured, names: Tensor) -> Measured:
    gradients = {
        name: gradient[names] if len(gradient) == VOCABULARY else gradient
        for name, gradient in measured.gradients.items()
    }
    return replace(measured, gradients=gradients)
