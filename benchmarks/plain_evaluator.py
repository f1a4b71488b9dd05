"""The evaluator of the usual harness, to measure ours against.

It follows open-unlearning, in our own code: questions in dataset order in batches of 32,
padded to the longest on the right; a forward pass with labels, so that the model computes a loss of
its own as well; the full logits shifted and copied, and cross-entropy over them; every answer
variant by itself. Then `model.generate`, greedy, from prompts padded on the left, and ROUGE, one
pair after the other. In its favour, the scoring passes store no key-value cache.

Rows and limits are those of our encoder and of the profile, so that both evaluators answer for the
same numbers, and the rows are made beforehand for both.
Source: locuslab/open-unlearning@5420d43:src/evals/metrics/utils.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unlearnbench.api.benchmark import Question
from unlearnbench.api.observations import (
    Evaluation,
    FloatArray,
    IntArray,
    SetEvaluation,
    SetName,
)
from unlearnbench.api.profile import Profile
from unlearnbench.evaluation.sets import is_answered
from unlearnbench.models.batching import collate
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.templates import Template
from unlearnbench.models.token_row import Row

from .timer import now

BATCH = 32
IGNORED = -100


@dataclass(frozen=True, eq=False)
class PlainResult:
    """An evaluation, its seconds by phase, and its answers as tokens."""

    evaluation: Evaluation
    scoring: float
    """Seconds for the losses of every answer variant."""
    generation: float
    """Seconds for the greedy answers and their ROUGE."""
    answers: Mapping[SetName, tuple[tuple[int, ...], ...]]
    """Ids of the greedy answers, without EOS."""


class PlainEvaluator:
    """The sets as tokens, for models with the same tokenizer."""

    def __init__(
        self,
        sets: Mapping[SetName, Sequence[Question]],
        tokenizer: Any,
        template: Template,
        profile: Profile,
        pad: int,
    ) -> None:
        self.sets, self.profile, self.pad = sets, profile, pad
        self.encoder = Encoder(
            tokenizer,
            template,
            profile.max_length,
            profile.eos_after_cut,
            eos_as_padding=profile.eos_as_padding,
        )
        self.rows = {
            name: [[self.encoder.row(q, a) for a in q.scored_answers] for q in questions]
            for name, questions in sets.items()
        }
        self.prompts = {
            name: [self.encoder.prompt(q) for q in questions] for name, questions in sets.items()
        }

    def __call__(self, model: Any) -> PlainResult:
        """Evaluate `model`, which must be in evaluation mode."""
        begin = now()
        losses = {name: self._losses(model, name) for name in self.sets}
        scored = now()
        answers: dict[SetName, tuple[tuple[int, ...], ...]] = {}
        found: dict[SetName, SetEvaluation] = {}
        for name in self.sets:
            answers[name] = self._answers(model, name)
            found[name] = self._set(name, losses[name], answers[name])
        end = now()
        evaluation = Evaluation(self.profile.id, found)
        return PlainResult(evaluation, scored - begin, end - scored, answers)

    def exactly(self, model: Any, found: Evaluation) -> Evaluation:
        """`found` with its losses computed again, with the log-softmax over the last dimension.

        Over transposed logits, which is the usual way, torch's cross-entropy is off by up to 4e-5
        nats a token in float32 on a CPU; so it is off by 5e-6 (both against float64).
        """
        sets: dict[SetName, SetEvaluation] = {}
        for name, each in found.sets.items():
            losses = self._losses(model, name, transposed=False)
            answer, base, perturbed = losses[:, 0], losses[:, 1], losses[:, 2:]
            sets[name] = replace(each, answer_loss=answer, base_loss=base, perturbed_loss=perturbed)
        return replace(found, sets=sets)

    def _losses(self, model: Any, name: SetName, *, transposed: bool = True) -> FloatArray:
        """[n, 2 + k] mean losses: answer, base, perturbed answers; NaN where there are fewer."""
        rows = self.rows[name]
        losses = np.full((len(rows), max(map(len, rows))), np.nan)
        for column in range(losses.shape[1]):
            # The base of a true fact is its answer, which need not be computed twice.
            if column == 1 and not any(q.paraphrased_answer for q in self.sets[name]):
                losses[:, 1] = losses[:, 0]
                continue
            there = [i for i, each in enumerate(rows) if column < len(each)]
            found = self._column(model, [rows[i][column] for i in there], transposed)
            losses[there, column] = found
        return losses

    @torch.no_grad()
    def _column(self, model: Any, rows: Sequence[Row], transposed: bool) -> list[float]:
        device = next(model.parameters()).device
        cross_entropy = nn.CrossEntropyLoss(ignore_index=IGNORED, reduction="none")
        means: list[float] = []
        for i in range(0, len(rows), BATCH):
            batch = rows[i : i + BATCH]
            tokens = collate(batch, self.pad, device)
            labels = tokens.ids.masked_fill(~tokens.predicts.roll(1, dims=1), IGNORED)
            logits = model(
                input_ids=tokens.ids, attention_mask=tokens.attention, labels=labels
            ).logits
            logits = logits[..., :-1, :].contiguous()  # [B, T - 1, V]
            targets = labels[..., 1:].contiguous()  # [B, T - 1]
            if transposed:
                each = cross_entropy(logits.transpose(-1, -2), targets)  # [B, T - 1]
            else:
                each = cross_entropy(logits.flatten(0, 1), targets.flatten()).view_as(targets)
            sums = each.sum(dim=-1)  # [B]
            means += (sums / (labels != IGNORED).sum(dim=-1)).tolist()
        return means

    @torch.no_grad()
    def _answers(self, model: Any, name: SetName) -> tuple[tuple[int, ...], ...]:
        device = next(model.parameters()).device
        answers: list[tuple[int, ...]] = []
        prompts, rule = self.prompts[name], self.profile.max_new_tokens
        if not is_answered(self.sets[name], None):
            return ()
        new = [question.max_new_tokens or rule for question in self.sets[name]]
        for i in range(0, len(prompts), BATCH):
            batch = prompts[i : i + BATCH]
            width = max(map(len, batch))
            ids = torch.tensor([[*[self.pad] * (width - len(p)), *p] for p in batch])
            lengths = torch.tensor([len(p) for p in batch])
            mask = (torch.arange(width) >= width - lengths.unsqueeze(1)).long()
            left = [self.profile.max_length - len(prompt) for prompt in batch]
            limits = [max(n or m, 1) for n, m in zip(new[i : i + BATCH], left, strict=True)]
            output: Tensor = model.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=max(limits),
                do_sample=False,
                use_cache=True,
                eos_token_id=self.encoder.eos,
                pad_token_id=self.pad,
            )[:, width:]
            for row, limit in zip(output.tolist(), limits, strict=True):
                stop = [*row, self.encoder.eos].index(self.encoder.eos)
                answers.append(tuple(row[: min(stop, limit)]))
        return tuple(answers)

    def _set(
        self, name: SetName, losses: FloatArray, answers: Sequence[tuple[int, ...]]
    ) -> SetEvaluation:
        from rouge_score import rouge_scorer

        scorer: Any = rouge_scorer.RougeScorer(["rouge1", "rougeL"], use_stemmer=True)
        generated = tuple(self.encoder.decode(answer) for answer in answers)
        pairs = zip(self.sets[name], self.rows[name], strict=True)
        references = tuple(self.encoder.reference(rows[0], q) for q, rows in pairs)
        scores = [scorer.score(r, g) for r, g in zip(references, generated, strict=bool(generated))]
        rouge = np.full((2, len(references)), np.nan)
        for i, each in enumerate(scores):
            rouge[:, i] = each["rouge1"].recall, each["rougeL"].recall
        tokens: IntArray = np.zeros(losses.shape, dtype=np.int64)
        for i, rows in enumerate(self.rows[name]):
            tokens[i, : len(rows)] = [row.scored for row in rows]
        return SetEvaluation(
            questions=tuple(q.question for q in self.sets[name]),
            generated=generated,
            references=references,
            answer_loss=losses[:, 0],
            answer_tokens=tokens[:, 0],
            base_loss=losses[:, 1],
            base_tokens=tokens[:, 1],
            perturbed_loss=losses[:, 2:],
            perturbed_tokens=tokens[:, 2:],
            rouge1_recall=rouge[0],
            rouge_l_recall=rouge[1],
        )
