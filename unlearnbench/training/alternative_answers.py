"""Alternative answers of the start model to the forget questions, sampled once and stored.

All runs of a sweep with the same start model, questions, way of sampling and seed share one file.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import Sampling
from unlearnbench.base.atomic import write_text
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.token_row import Row
from unlearnbench.training.answer_sampling import (
    ALTERNATIVES,
    SeededPrompt,
    answer_rows,
    sample,
)


def alternative_rows(
    load: Callable[[], Any],
    weights_hash: str,
    questions: Sequence[Question],
    sampling: Sampling,
    encoder: Encoder,
    *,
    seed: int,
    pad: int,
    folder: Path,
    skipped: int = 0,
) -> list[tuple[Row, ...]]:
    """`sampling.count` rows for each question, from disk where they are stored.

    load          returns the start model, in evaluation mode; called only if needed
    weights_hash  identity of those weights
    skipped       first answer tokens that the loss does not see

    Several processes may write the same file: each renames its own into place, and their contents
    are equal.
    """
    prompts = start_prompts(questions, sampling, encoder)
    path = folder / f"{_key(weights_hash, prompts, sampling, encoder, seed)}.json"
    answers = _read(path)
    if answers is None:
        seeded = [
            SeededPrompt(prompt, (seed, index, number, ALTERNATIVES))
            for index, prompt in enumerate(prompts)
            for number in range(sampling.count)
        ]
        sampled = sample(load(), seeded, sampling, encoder, pad)
        answers = [sampled[i : i + sampling.count] for i in range(0, len(sampled), sampling.count)]
        _write(path, questions, answers, encoder)
    return [
        tuple(
            encoder.labelled(row, question).without_first(skipped)
            for row in _rows(question, answer, sampling, encoder)
        )
        for question, answer in zip(questions, answers, strict=True)
    ]


def _rows(
    question: Question, answers: Sequence[tuple[int, ...]], sampling: Sampling, encoder: Encoder
) -> list[Row]:
    """The rows of a question with each of `answers`."""
    if not (sampling.prefix or sampling.stop):
        # The question replaces a longer instruction, so that no row gets too long.
        return answer_rows(encoder.prompt(question), answers)
    texts = [encoder.sampled_text(answer, question) for answer in answers]
    for end in sampling.stop:
        texts = [text.split(end)[0] for text in texts]
    return [encoder.row(question, question.continuation(text.strip())) for text in texts]


def start_prompts(
    questions: Sequence[Question], sampling: Sampling, encoder: Encoder
) -> list[tuple[int, ...]]:
    """The prompt of the start model for each question."""
    return [
        encoder.prompt(_instructed(question, sampling), sampling.prefix) for question in questions
    ]


def _instructed(question: Question, sampling: Sampling) -> Question:
    values = {"{question}": question.question, "{answer}": question.answer}
    # In one pass: a question may contain «{answer}».
    text = re.sub(
        r"\{question\}|\{answer\}", lambda result: values[result[0]], sampling.instruction
    )
    return replace(question, question=text)


def _key(
    weights_hash: str,
    prompts: Sequence[tuple[int, ...]],
    sampling: Sampling,
    encoder: Encoder,
    seed: int,
) -> str:
    # The prompts' ids cover questions, instruction, prefix, tokenizer and template; `stop` is
    # applied after sampling.
    sampled = {k: v for k, v in asdict(sampling).items() if k not in ("prefix", "stop")}
    content = [weights_hash, sampled, encoder.max_length, encoder.eos, seed, prompts]
    if encoder.stops != frozenset({encoder.eos}) or encoder.end_text:
        content += [sorted(encoder.stops), encoder.end_text]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


def _read(path: Path) -> list[list[tuple[int, ...]]] | None:
    """Token ids by question and answer; None without the file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return [
        [tuple(answer["ids"]) for answer in entry["answers"]] for entry in document["questions"]
    ]


def _write(
    path: Path,
    questions: Sequence[Question],
    answers: Sequence[Sequence[tuple[int, ...]]],
    encoder: Encoder,
) -> None:
    document = [
        {
            "question": question.question,
            # The text is for people; only the ids are read.
            "answers": [{"ids": ids, "text": encoder.decode(ids)} for ids in answer],
        }
        for question, answer in zip(questions, answers, strict=True)
    ]
    write_text(path, json.dumps({"questions": document}, ensure_ascii=False, indent=1))
