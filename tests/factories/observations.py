"""Observations of models that exist only as numbers: how well they know each row of a benchmark.

`observe` draws what an evaluation of such a model would have observed: losses and hits by token,
greedy answers, losses of paraphrases and wrong answers, sampled answers. Everything that belongs
together agrees: mean losses are means of the tokens' losses, and ROUGE is that of the texts.

Rows differ in difficulty, and a row is as difficult for one model as for another. So two models
with equal knowledge answer alike, as a perfectly unlearned model and the retain model would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.stats import entropy

from unlearnbench.api.benchmark import Question
from unlearnbench.api.metric import EXTRA, GRADIENTS, MOMENTS, SCORED_ONLY, Reads, Role
from unlearnbench.api.observations import (
    AnswerTokens,
    Evaluation,
    FloatArray,
    IntArray,
    Samples,
    SetEvaluation,
)
from unlearnbench.stats.text_overlap import rouge_recall

_OTHER_WORDS = ("maybe", "nobody", "somewhere", "later", "green", "seven", "the", "often")
"""Words of answers that a model does not know."""

Rows = Mapping[str, Sequence[Question]]
"""The rows of each evaluation set."""


@dataclass(frozen=True)
class Knowledge:
    """What a model knows, from 0 (nothing) to 1 (each token of each answer)."""

    of_role: Mapping[Role, float]
    """Share of the answers' tokens that the model predicts, by the role of the set."""
    noise: float = 0.06
    """Standard deviation of each row's own share."""
    seed: int = 0
    """Of the noise. Two models of equal knowledge and seed give equal observations."""
    is_finite: bool = True
    """False for a model whose outputs are NaN, as after a training that diverged."""
    undefined_rows: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    """Indices of rows, by set, for whose true answers the model's outputs are NaN."""

    def changed(self, role: Role, share: float) -> Knowledge:
        """The same model with another share of one role's tokens."""
        return replace(self, of_role={**self.of_role, role: float(np.clip(share, 0.0, 0.99))})


def observe(
    knowledge: Knowledge,
    rows: Rows,
    roles: Mapping[str, Role],
    profile: str,
    *,
    extra: frozenset[Reads] = frozenset(),
    samples: int = 0,
    asked: str = "",
) -> Evaluation:
    """Draw the evaluation of a model.

    Args:
        knowledge: Of the model.
        rows: Rows of each set that is evaluated.
        roles: Role of each set.
        profile: Id of the profile.
        extra: Observations that metrics read and that are not always made (`grad_norm`).
        samples: Number of sampled answers to each question of forget sets; 0 without sampling.
        asked: How the rows are asked: the name of a variant. The same model answers differently
            to another prompt, and always in the same way to one prompt.
    """
    sets = {
        name: _observed_set(name, knowledge, of_set, roles[name], extra, samples, asked)
        for name, of_set in rows.items()
    }
    return Evaluation(profile, sets, precision="float32")


def subset(seen: SetEvaluation, keep: Sequence[int]) -> SetEvaluation:
    """Return the observations of some rows of a set, in their order."""
    index = np.array(keep, dtype=np.int64)
    changed: dict[str, Any] = {
        name: getattr(seen, name)[index]
        for name in (
            *("answer_loss", "answer_tokens", "base_loss", "base_tokens", "perturbed_loss"),
            *("perturbed_tokens", "rouge1_recall", "rouge_l_recall"),
        )
    }
    changed |= {
        name: tuple(values[i] for i in keep) if (values := getattr(seen, name)) else ()
        for name in ("questions", "generated", "references", "sentences", "options", "labels")
    }
    changed |= {
        name: None if (values := getattr(seen, name)) is None else values[index]
        for name in (*EXTRA, "answer_index", "compressed_bytes")
    }
    tokens = None if seen.token_columns is None else _token_subset(seen.token_columns, keep)
    sampled = None
    if seen.samples is not None:
        answers = tuple(seen.samples.texts[i] for i in keep)
        sampled = Samples(answers, seen.samples.rouge_l_recall[index])
    return replace(seen, **changed, token_columns=tokens, samples=sampled, values={})


def _token_subset(tokens: AnswerTokens, keep: Sequence[int]) -> AnswerTokens:
    ends = np.cumsum(tokens.lengths)
    starts = ends - tokens.lengths
    places = np.concatenate([np.arange(starts[i], ends[i]) for i in keep] or [np.arange(0)])
    moments: dict[str, Any] = {
        name: None if (values := getattr(tokens, name)) is None else values[places]
        for name in ("mean_logprob", "logprob_variance")
    }
    index = np.array(keep, dtype=np.int64)
    return AnswerTokens(
        lengths=tokens.lengths[index],
        ended=tokens.ended[index],
        loss=tokens.loss[places],
        hit=tokens.hit[places],
        tied=tokens.tied[places],
        **moments,
    )


def _generator(*parts: object) -> np.random.Generator:
    """Return a generator that depends on the parts only, on every machine."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def _observed_set(
    name: str,
    knowledge: Knowledge,
    rows: Sequence[Question],
    role: Role,
    extra: frozenset[Reads],
    samples: int,
    asked: str,
) -> SetEvaluation:
    n = len(rows)
    share = knowledge.of_role[role]
    noise = _generator("noise", knowledge.seed, name, asked).normal(0, knowledge.noise, n)
    known = np.clip(share + noise, 0.0, 1.0)
    undefined = np.zeros(n, dtype=np.bool_)
    undefined[[i for i in knowledge.undefined_rows.get(name, ()) if i < n]] = True
    if not knowledge.is_finite:
        undefined[:] = True

    words = [row.answer.split() for row in rows]
    # The last token ends the turn. Every seventh answer is cut before it.
    ended = np.array([i % 7 != 6 and row.answer_index is None for i, row in enumerate(rows)])
    lengths = np.array([len(w) for w in words], dtype=np.int64) + ended
    lengths = np.maximum(lengths, 1)
    difficulty = [
        _generator("row", name, row.question, row.answer, i) for i, row in enumerate(rows)
    ]
    uniform = [rng.random(size) for rng, size in zip(difficulty, lengths, strict=True)]
    hits = [values < share_of_row for values, share_of_row in zip(uniform, known, strict=True)]
    losses = [
        np.where(hit, 0.05 + 0.4 * values, 1.0 + 3.0 * values + 0.8 * (1 - share_of_row))
        for hit, values, share_of_row in zip(hits, uniform, known, strict=True)
    ]
    for i in np.flatnonzero(undefined):
        losses[i] = np.full(lengths[i], np.nan)
        hits[i] = np.zeros(lengths[i], dtype=np.bool_)
    loss = np.concatenate(losses).astype(np.float32)
    moments = _moments(loss, uniform) if role in MOMENTS else (None, None)
    tokens = AnswerTokens(
        lengths=lengths,
        ended=ended,
        loss=loss,
        hit=np.concatenate(hits),
        tied=np.concatenate(uniform) > 0.98,
        mean_logprob=moments[0],
        logprob_variance=moments[1],
    )
    parts = tokens.by_answer(loss, eos=True)
    answer_loss = np.array([part.mean(dtype=np.float64) for part in parts])

    is_generated = role not in SCORED_ONLY and not all(row.is_scored_only for row in rows)
    references = tuple(row.answer for row in rows)
    generated: tuple[str, ...] = ()
    rouge = np.full((2, n), np.nan)
    if is_generated:
        generated = tuple(_greedy_answer(w, hit, asked) for w, hit in zip(words, hits, strict=True))
        rouge = np.stack(rouge_recall(references, generated))
        rouge[:, undefined] = np.nan

    base_loss, base_tokens = _paraphrases(rows, answer_loss, lengths, known, difficulty)
    perturbed_loss, perturbed_tokens = _wrong_answers(rows, known, difficulty)
    if not knowledge.is_finite:
        base_loss[:] = np.nan
        perturbed_loss[:] = np.nan
    more = _generator("more", knowledge.seed, name, asked)
    has_options = all(row.answer_index is not None for row in rows)
    return SetEvaluation(
        questions=tuple(row.question for row in rows),
        generated=generated,
        references=references,
        answer_loss=answer_loss,
        answer_tokens=lengths,
        base_loss=base_loss,
        base_tokens=base_tokens,
        perturbed_loss=perturbed_loss,
        perturbed_tokens=perturbed_tokens,
        rouge1_recall=rouge[0],
        rouge_l_recall=rouge[1],
        token_columns=tokens,
        grad_norm=answer_loss * more.uniform(2, 3, n)
        if "grad_norm" in extra and role in GRADIENTS
        else None,
        start_loss=0.3 + (1 - known) * more.uniform(0.5, 1.5, n)
        if "start_loss" in extra and is_generated
        else None,
        token_entropy=np.array([_word_entropy(text) for text in generated])
        if "token_entropy" in extra and is_generated
        else None,
        samples=_sampled(words, known, undefined, samples, knowledge.seed, asked)
        if samples and role == "forget" and is_generated
        else None,
        options=tuple(row.options for row in rows) if has_options else (),
        answer_index=np.array([row.answer_index for row in rows]) if has_options else None,
    )


def _moments(loss: np.ndarray, uniform: Sequence[FloatArray]) -> tuple[np.ndarray, np.ndarray]:
    values = np.concatenate(uniform)
    mean = (-1.0 - values - 0.1 * np.nan_to_num(loss)).astype(np.float32)
    variance = (0.5 + values).astype(np.float32)
    return np.where(np.isnan(loss), np.nan, mean), np.where(np.isnan(loss), np.nan, variance)


def _word_entropy(text: str) -> float:
    """Return the normalised entropy of a text's words, which are the tokens of these models."""
    words = text.split()
    if len(words) < 2:
        return 0.0
    _, counts = np.unique(words, return_counts=True)
    return float(entropy(counts) / np.log(len(words)))


def _greedy_answer(words: Sequence[str], hits: Sequence[bool], asked: str) -> str:
    """Return the answer with other words where the model does not predict the true ones."""
    shown = [
        word if hit else _OTHER_WORDS[(len(word) + i + len(asked)) % len(_OTHER_WORDS)]
        for i, (word, hit) in enumerate(zip(words, hits, strict=False))
    ]
    return " ".join(shown)


def _paraphrases(
    rows: Sequence[Question],
    answer_loss: FloatArray,
    lengths: IntArray,
    known: FloatArray,
    difficulty: Sequence[np.random.Generator],
) -> tuple[FloatArray, IntArray]:
    """Return losses and tokens of the answers in other words, else of the answers themselves."""
    loss = answer_loss.copy()
    tokens = lengths.copy()
    for i, row in enumerate(rows):
        if row.paraphrased_answer:
            loss[i] = 0.4 + 1.3 * (1 - known[i]) + 1.2 * difficulty[i].random()
            tokens[i] = len(row.paraphrased_answer.split()) + 1
    return loss, tokens


def _wrong_answers(
    rows: Sequence[Question], known: FloatArray, difficulty: Sequence[np.random.Generator]
) -> tuple[FloatArray, IntArray]:
    """[n, k] losses and tokens of the wrong answers; NaN and 0 behind those of a row with fewer."""
    most = max((len(row.perturbed_answers) for row in rows), default=0)
    loss = np.full((len(rows), most), np.nan)
    tokens = np.zeros((len(rows), most), dtype=np.int64)
    for i, row in enumerate(rows):
        count = len(row.perturbed_answers)
        loss[i, :count] = 1.2 + 0.4 * known[i] + 0.9 * difficulty[i].random(count)
        tokens[i, :count] = [len(text.split()) + 1 for text in row.perturbed_answers]
    return loss, tokens


def _sampled(
    words: Sequence[Sequence[str]],
    known: FloatArray,
    undefined: np.ndarray,
    count: int,
    seed: int,
    asked: str,
) -> Samples:
    """Draw answers in which each word is the true one with the probability of the model."""
    texts: list[tuple[str, ...]] = []
    scores: list[FloatArray] = []
    for i, answer in enumerate(words):
        rng = _generator("samples", seed, i, asked)
        answers = [
            _greedy_answer(answer, rng.random(len(answer)) < known[i], asked) for _ in range(count)
        ]
        texts.append(tuple(answers))
        row = rouge_recall([" ".join(answer)] * count, answers)[1]
        scores.append(np.full(count, np.nan) if undefined[i] else row)
    return Samples(tuple(texts), np.array(scores))
