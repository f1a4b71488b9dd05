"""What else the frozen start model answers to the forget questions, sampled once and kept.

All runs of a sweep with the same start model, questions, way of sampling and seed share one file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unlearnbench.data.benchmark import Question
from unlearnbench.data.encoding import Encoder, Row
from unlearnbench.method import Sampling
from unlearnbench.notices import notice
from unlearnbench.sampling import ALTERNATIVES, Asked, answer_rows, sample, sampled_tokens
from unlearnbench.shortage import in_smaller_batches


def alternative_rows(
    load: Callable[[], Any],
    weights_hash: str,
    questions: Sequence[Question],
    how: Sampling,
    encoder: Encoder,
    *,
    seed: int,
    pad: int,
    folder: Path,
    skipped: int = 0,
    batch_tokens: int | None = None,
) -> list[tuple[Row, ...]]:
    """`how.count` rows for each question, from disk where they are known.

    load          returns the start model, in evaluation mode; called only where it is needed
    weights_hash  identity of those weights
    skipped       first answer tokens that the loss does not see

    Several processes may want the same file: each writes its own and renames it into place, and
    equal content makes it irrelevant which one stays. A damaged file is made again.
    """
    prompts = prompts_of(questions, how, encoder)
    path = folder / f"{_key(weights_hash, prompts, how, encoder, seed)}.json"
    answers = _read(path, len(questions), how.count)
    if answers is None:
        asked = [
            Asked(prompt, (seed, index, number, ALTERNATIVES))
            for index, prompt in enumerate(prompts)
            for number in range(how.count)
        ]
        model = load()
        sampled, _ = in_smaller_batches(
            lambda tokens: sample(model, asked, how, encoder, pad, tokens),
            batch_tokens or sampled_tokens(model),
        )
        answers = [sampled[i : i + how.count] for i in range(0, len(sampled), how.count)]
        _write(path, questions, answers, encoder)
    return [
        tuple(
            encoder.labelled(row).without_first(skipped)
            for row in _rows(question, found, how, encoder)
        )
        for question, found in zip(questions, answers, strict=True)
    ]


def _rows(
    question: Question, answers: Sequence[tuple[int, ...]], how: Sampling, encoder: Encoder
) -> list[Row]:
    """The question with each of `answers` in place of its own."""
    if not (how.prefix or how.stop):
        # An instruction is longer than the question that takes its place: no row grows too long.
        return answer_rows(encoder.prompt(question.question), answers)
    texts = [encoder.decode(answer) for answer in answers]
    for end in how.stop:
        texts = [text.split(end)[0] for text in texts]
    return [encoder.row(question.question, text.strip()) for text in texts]


def prompts_of(
    questions: Sequence[Question], how: Sampling, encoder: Encoder
) -> list[tuple[int, ...]]:
    """What the start model reads before it answers each question."""
    return [encoder.prompt(_instructed(question, how), how.prefix) for question in questions]


def _instructed(question: Question, how: Sampling) -> str:
    known = {"{question}": question.question, "{answer}": question.answer}
    # In one pass: a question may contain «{answer}».
    return re.sub(r"\{question\}|\{answer\}", lambda found: known[found[0]], how.instruction)


def _key(
    weights_hash: str,
    prompts: Sequence[tuple[int, ...]],
    how: Sampling,
    encoder: Encoder,
    seed: int,
) -> str:
    # The prompts' ids stand for questions, instruction, prefix, tokenizer and template. What ends
    # an answer is looked for in what was sampled, which does not depend on it.
    sampled = {k: v for k, v in asdict(how).items() if k not in ("prefix", "stop")}
    asked = [weights_hash, sampled, encoder.max_length, encoder.eos, seed, prompts]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:24]


def _read(path: Path, questions: int, count: int) -> list[list[tuple[int, ...]]] | None:
    """Token ids by question and answer; None where the file is missing, or damaged, as is told."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        answers = [
            [tuple(int(token) for token in answer["ids"]) for answer in entry["answers"]]
            for entry in document["questions"]
        ]
        whole = (
            document["sha256"] == _hash(document["questions"])
            and len(answers) == questions
            and all(len(found) == count and all(found) for found in answers)
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        whole, answers = False, []
    if not whole:
        notice(f"{path}: the start model's answers are damaged there; they are sampled again")
    return answers if whole else None


def _hash(questions: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(questions).encode()).hexdigest()


def _write(
    path: Path,
    questions: Sequence[Question],
    answers: Sequence[Sequence[tuple[int, ...]]],
    encoder: Encoder,
) -> None:
    document = [
        {
            "question": question.question,
            # The text is for people, and says nothing that the ids do not.
            "answers": [{"ids": ids, "text": encoder.decode(ids)} for ids in found],
        }
        for question, found in zip(questions, answers, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        whole = {"sha256": _hash(document), "questions": document}
        json.dump(whole, file, ensure_ascii=False, indent=1)
    Path(name).replace(path)
