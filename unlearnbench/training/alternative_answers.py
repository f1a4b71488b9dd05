"""Alternative answers of the start model to the forget questions, sampled once and stored.

Runs with the same start model, questions, settings of sampling and seed share one file. It contains
the answers as token ids, and as text for people.
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
    """Return rows with other answers of the start model to each question.

    The answers are read from disk if they are stored there. Several processes may write the same
    file: each renames its own file into place, and the contents are equal.

    Args:
        load: Returns the start model in evaluation mode. Called only if answers have to be sampled.
        weights_hash: Identity of the start model's weights.
        questions: The forget rows.
        sampling: The settings of sampling.
        encoder: Encodes prompts and rows.
        seed: Seed of the run.
        pad: Id of the padding token.
        folder: Folder of the stored answers.
        skipped: Number of first answer tokens that the loss ignores.

    Returns:
        `sampling.count` rows for each question.
    """
    prompts = start_prompts(questions, sampling, encoder)
    path = folder / f"{_key(weights_hash, prompts, sampling, encoder, seed)}.json"
    answers = _read(path)
    if answers is None:
        answers = _sample(load(), prompts, sampling, encoder, seed, pad)
        _write(path, questions, answers, encoder)
    alternatives: list[tuple[Row, ...]] = []
    for question, answers_of_question in zip(questions, answers, strict=True):
        rows = _rows(question, answers_of_question, sampling, encoder)
        alternatives.append(
            tuple(encoder.labelled(row, question).without_first(skipped) for row in rows)
        )
    return alternatives


def _sample(
    start: Any,
    prompts: Sequence[tuple[int, ...]],
    sampling: Sampling,
    encoder: Encoder,
    seed: int,
    pad: int,
) -> list[list[tuple[int, ...]]]:
    """Sample `sampling.count` answers to each prompt, as token ids."""
    seeded_prompts: list[SeededPrompt] = []
    for index, prompt in enumerate(prompts):
        for number in range(sampling.count):
            seeded_prompts.append(SeededPrompt(prompt, (seed, index, number, ALTERNATIVES)))
    answers = iter(sample(start, seeded_prompts, sampling, encoder, pad))
    return [[next(answers) for _ in range(sampling.count)] for _ in prompts]


def _rows(
    question: Question, answers: Sequence[tuple[int, ...]], sampling: Sampling, encoder: Encoder
) -> list[Row]:
    """Return a row for each answer to a question, without the instruction of the prompt."""
    answers_are_whole = not sampling.prefix and not sampling.stop
    if answers_are_whole:
        # The question is shorter than the prompt that was answered, so no row gets too long.
        return answer_rows(encoder.prompt(question), answers)
    rows: list[Row] = []
    for answer in answers:
        text = encoder.sampled_text(answer, question)
        for end in sampling.stop:
            text, _, _ = text.partition(end)
        rows.append(encoder.row(question, question.continuation(text.strip())))
    return rows


def start_prompts(
    questions: Sequence[Question], sampling: Sampling, encoder: Encoder
) -> list[tuple[int, ...]]:
    """Return the prompt of the start model for each question, as token ids."""
    return [
        encoder.prompt(_instructed(question, sampling), sampling.prefix) for question in questions
    ]


def _instructed(question: Question, sampling: Sampling) -> Question:
    """Return the question with the instruction in place of its text."""
    values = {"{question}": question.question, "{answer}": question.answer}
    # All names are replaced in one pass, because a question may contain the text `{answer}`.
    instruction = re.sub(
        r"\{question\}|\{answer\}", lambda match: values[match[0]], sampling.instruction
    )
    return replace(question, question=instruction)


def _key(
    weights_hash: str,
    prompts: Sequence[tuple[int, ...]],
    sampling: Sampling,
    encoder: Encoder,
    seed: int,
) -> str:
    """Return a hash of everything that sampled answers depend on."""
    settings = asdict(sampling)
    # The prompts contain the prefix, as they do questions, instruction and template.
    del settings["prefix"]
    # Answers are cut at `stop` when they are read.
    del settings["stop"]
    content = [weights_hash, settings, encoder.max_length, encoder.eos, seed, prompts]
    # Keys of earlier versions have no entry for the end of answers: it was EOS.
    ends_by_eos_only = encoder.stops == frozenset({encoder.eos}) and not encoder.end_text
    if not ends_by_eos_only:
        content += [sorted(encoder.stops), encoder.end_text]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


def _read(path: Path) -> list[list[tuple[int, ...]]] | None:
    """Return the token ids of stored answers, by question and answer. None: there is no file."""
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
    """Store the answers to each question."""
    entries: list[dict[str, Any]] = []
    for question, answers_of_question in zip(questions, answers, strict=True):
        # Only the ids are read. The text is for people.
        described = [{"ids": ids, "text": encoder.decode(ids)} for ids in answers_of_question]
        entries.append({"question": question.question, "answers": described})
    write_text(path, json.dumps({"questions": entries}, ensure_ascii=False, indent=1))
