"""Rules of a benchmark's rows. A fault is one line: place, value, rule, and what to do.

Numbers mean nothing if some of these rules are broken. `load_benchmark` refuses rows that break one
of those (`sound_rows`). The conformance suite for benchmarks checks all rules.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

from unlearnbench.api.benchmark import Benchmark, Dataset, Format, Question, Split, SplitKey
from unlearnbench.api.metric import MOMENTS, SCORED_ONLY, Reads, Role
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.base.errors import shortened
from unlearnbench.base.row_texts import row_text

Rows = Sequence[Question]

_FORMATS = get_args(Format)
FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.25, 1 / 3, 0.5)
"""Fractions to forget that are tried if a benchmark names no splits."""


def splits_of(benchmark: Benchmark) -> tuple[SplitKey, ...]:
    """Return the splits that a benchmark names, or those of `FRACTIONS` that it has."""
    if benchmark.split_names:
        return benchmark.split_names
    return tuple(fraction for fraction in FRACTIONS if not benchmark.problem_with(fraction))


def sound_rows(benchmark: Benchmark, rows: Dataset) -> Iterator[str]:
    """Yield the faults with which no run may begin."""
    yield from row_faults(rows)
    for split in rows.splits.values():
        yield from set_faults(benchmark, split)
        yield from overlap_faults(split)
        yield from holdout_faults(benchmark, rows, split)


def row_faults(dataset: Dataset) -> Iterator[str]:
    """Yield rows that are at fault by themselves, and sets of rows of two kinds."""
    for part, rows in dataset.parts():
        for index, row in enumerate(rows):
            fault = _fault(row)
            if fault:
                yield f"{_place(part, index, row)}: {fault}"
    for split in dataset.splits.values():
        for name, rows in split.sets.items():
            part = f"set {name} of {split.name}"
            yield from _mixed_rows(part, rows)
            choices = [row for row in rows if row.options]
            repeating = [row for row in choices if row.answer in row.perturbed_answers]
            # Published benchmarks have a row or two with such an option.
            if len(repeating) > len(choices) / 2:
                yield (
                    f"{part}: most answers are among their `perturbed_answers` as well, which are "
                    "the wrong options alone; the answer is inserted at `answer_index`"
                )


def _fault(row: Question) -> str:
    """Return the first fault of a row by itself; empty if it has none."""
    scores = row.score if isinstance(row.score, tuple) else (row.score or 0,)
    variants = (row.paraphrased_answer, *row.perturbed_answers)
    if row.format not in _FORMATS:
        return f"format {row.format!r}: must be {' or '.join(_FORMATS)}"
    if not row.answer.strip():
        subject = "text" if row.is_plain_text else "answer"
        return f"the {subject} is empty, so there is nothing to score; leave the row out"
    if not row.question.strip() and not row.is_plain_text:
        return "the question is blank; a row of plain text has format='text' and no question at all"
    if any(text is not None and not text.strip() for text in variants):
        return "a paraphrased or wrong answer is empty; leave it out, or the row"
    if row.is_plain_text and row.examples:
        return "examples in front of plain text, which has no question; put them into the text"
    if any(not text.strip() for example in row.examples for text in example):
        return "an example has an empty question or answer; leave it out"
    if row.max_new_tokens is not None and row.max_new_tokens < 1:
        return f"max_new_tokens {row.max_new_tokens}: must be at least 1"
    if row.max_length is not None and row.max_length < 1:
        return f"max_length {row.max_length}: must be at least 1"
    if row.answer_index is not None and not 0 <= row.answer_index <= len(row.perturbed_answers):
        return f"answer_index {row.answer_index}: the row has {len(row.options)} options"
    if not all(0 <= score <= 1 for score in scores):
        return f"score {shortened(row.score)}: must be from 0 (unlearn) to 1 (learn)"
    return ""


def _mixed_rows(part: str, rows: Rows) -> Iterator[str]:
    """Yield what only some rows of a set have, although either all rows or none must have it."""
    presence = {
        "question": [not row.is_plain_text for row in rows],
        "wrong answers": [bool(row.perturbed_answers) for row in rows],
        "options": [row.answer_index is not None for row in rows],
    }
    for subject, row_has_it in presence.items():
        if any(row_has_it) and not all(row_has_it):
            without = row_has_it.index(False)
            with_it = row_has_it.index(True)
            yield (
                f"{_place(part, without, rows[without])}: no {subject}, but "
                f"{_place(part, with_it, rows[with_it])} "
                "has some; put the rows with and without them into different sets"
            )


def set_faults(benchmark: Benchmark, split: Split) -> Iterator[str]:
    """Yield evaluation sets without a role, roles without a set, and sets without rows."""
    roles = benchmark.set_roles
    known = ", ".join(roles)
    for name in split.sets:
        if name not in roles:
            yield f"{split.name}: its set {name!r} is not in `roles`: {known}; give it a role there"
    for name, role in roles.items():
        if name not in split.sets:
            yield f"{split.name} has no set {name!r}, which `roles` declares; load it"
        elif not split.sets[name] and role != "holdout":
            yield f"{split.name}: its set {name!r} has no rows; only a holdout set may have none"


def overlap_faults(split: Split) -> Iterator[str]:
    """Yield retain rows that are forget rows."""
    forget = _Part(split.name, split.forget)
    retain = _Part(split.retain_name, split.retain)
    rule = "a row is forgotten or retained, so remove one of the two"
    yield from _shared_rows(forget, retain, rule)


def holdout_faults(benchmark: Benchmark, rows: Dataset, split: Split) -> Iterator[str]:
    """Yield rows of holdout sets on which a model is trained."""
    # A list, because a split may be called `full` or like other rows.
    trained = [
        _Part("full", rows.full),
        _Part(split.name, split.forget),
        _Part(split.retain_name, split.retain),
        _Part("pretraining", rows.pretraining),
        _Part("facts", rows.facts),
    ]
    rule = "models are trained on it, and no model may have seen a holdout row, so remove this one"
    for name in sets_of(benchmark, "holdout"):
        holdout = _Part(f"set {name} of {split.name}", split.sets.get(name, ()))
        for part in trained:
            yield from _shared_rows(part, holdout, rule)


def whole_faults(benchmark: Benchmark, rows: Dataset, split: Split) -> Iterator[str]:
    """Yield a fault if forget rows and retain rows together are not the rows of the full set.

    Without a retain model the full set may have rows that are in neither: those of other splits.
    """
    parts = Counter(map(words, (*split.forget, *split.retain)))
    full = Counter(map(words, rows.full))
    in_neither = full - parts if "retain" in benchmark.references else Counter[tuple[str, ...]]()
    counts = (
        f"{len(split.forget)} forget rows and {len(split.retain)} retain rows of {len(rows.full)}"
    )
    for left, subject in ((in_neither, "in neither"), (parts - full, "not in `full`")):
        if left:
            question, answer, *_ = next(iter(left))
            text = row_text(question or answer)
            yield f"{split.name}: {counts}; {left.total()} are {subject}, the first one {text}"


def observation_faults(benchmark: Benchmark, plan: MetricPlan, split: Split) -> Iterator[str]:
    """Yield sets without the observations of a metric that the benchmark names for them."""
    for measure in plan.measures:
        for name in measure.sets:
            if f"{measure.name}_{name}" not in plan.own:
                continue
            for observation in sorted(measure.metric.reads):
                rows = split.sets.get(name, ())
                reason = _reason_without(observation, benchmark.set_roles[name], rows)
                if reason:
                    yield (
                        f"set {name} of {split.name}: metric {measure.name!r} reads "
                        f"{observation!r}, and "
                        f"{reason}; report it on other sets, or give the rows what is missing"
                    )


def _reason_without(observation: Reads, role: Role, rows: Rows) -> str:
    """Return the reason why a set has no such observation; empty if it has one."""
    if observation == "moments" and role not in MOMENTS:
        return f"sets of role {role} have none"
    if observation in ("generated", "rouge"):
        if role in SCORED_ONLY:
            return f"no answers are generated to sets of role {role}"
        scored_only = sum(row.is_scored_only for row in rows)
        return _count_text(scored_only, rows, "are scored, never generated")
    if observation == "perturbed":
        lacking = sum(not row.perturbed_answers for row in rows)
        return _count_text(lacking, rows, "lack `perturbed_answers`")
    # One paraphrase is enough: the others' base is the answer itself.
    if observation == "paraphrase" and not any(row.paraphrased_answer for row in rows):
        return _count_text(len(rows), rows, "have none")
    return ""


def _count_text(count: int, rows: Rows, fault: str) -> str:
    return f"{count} of its {len(rows)} rows {fault}" if count else ""


def sets_of(benchmark: Benchmark, role: Role) -> list[str]:
    """Return the names of the evaluation sets with a role."""
    return [name for name, set_role in benchmark.set_roles.items() if set_role == role]


class _Part(NamedTuple):
    """Rows of a benchmark under the name of what they are."""

    name: str
    rows: Rows


def _shared_rows(part: _Part, checked: _Part, rule: str) -> Iterator[str]:
    """Yield the rows of `checked` that are also in `part`, with the rule that they break."""
    if not checked.rows:
        return
    index_of = {words(row): index for index, row in enumerate(part.rows)}
    for index, row in enumerate(checked.rows):
        same = index_of.get(words(row))
        if same is not None:
            place = _place(part.name, same, part.rows[same])
            yield f"{_place(checked.name, index, row)}: the same row as {place}; {rule}"


def words(row: Question) -> tuple[str, ...]:
    """Return the words of a row: question and answer first, then what a conversation has before."""
    context = [text for example in row.examples for text in example]
    texts = (row.question, row.answer, *context, row.system or "")
    return tuple(" ".join(text.split()) for text in texts)


def _place(part: str, index: int, row: Question) -> str:
    return row.place or f"{part}, row {index + 1}"
