"""Rules of a benchmark's rows. A fault is one line: place, value, rule, and what to do.

`load_benchmark` refuses rows that break a rule without which numbers mean nothing; the conformance
suite for benchmarks checks all of them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from unlearnbench.api.benchmark import Benchmark, Dataset, Format, Question, Split, SplitKey
from unlearnbench.api.metric import MOMENTS, SCORED_ONLY, Reads, Role
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.base.errors import shortened
from unlearnbench.base.row_texts import row_text

Rows = Sequence[Question]

_FORMATS = get_args(Format)
FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.25, 1 / 3, 0.5)
"""Fractions to forget of which those that a benchmark has are tried."""


def splits_of(benchmark: Benchmark) -> tuple[SplitKey, ...]:
    """The splits that a benchmark names, or those of `FRACTIONS` that it has."""
    return benchmark.split_names or tuple(f for f in FRACTIONS if not benchmark.problem_with(f))


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
        for i, row in enumerate(rows):
            if fault := _fault(row):
                yield f"{_place(part, i, row)}: {fault}"
    for split in dataset.splits.values():
        for name, rows in split.sets.items():
            part = f"set {name} of {split.name}"
            yield from _unlike(part, rows)
            twice = [row.answer in row.perturbed_answers for row in rows if row.options]
            # A published row or two have such an option.
            if sum(twice) > len(twice) / 2:
                yield (
                    f"{part}: most answers are among their `perturbed_answers` as well, which are "
                    "the wrong options alone; the answer is inserted at `answer_index`"
                )


def _fault(row: Question) -> str:
    """The first fault of a row by itself; "" where it has none."""
    scores = row.score if isinstance(row.score, tuple) else (row.score or 0,)
    variants = (row.paraphrased_answer, *row.perturbed_answers)
    limit: Any = row.max_new_tokens
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
    if limit is not None and limit < 1:
        return f"max_new_tokens {limit}: must be at least 1"
    if row.max_length is not None and row.max_length < 1:
        return f"max_length {row.max_length}: must be at least 1"
    if row.answer_index is not None and not 0 <= row.answer_index <= len(row.perturbed_answers):
        return f"answer_index {row.answer_index}: the row has {len(row.options)} options"
    if not all(0 <= score <= 1 for score in scores):
        return f"score {shortened(row.score)}: must be from 0 (unlearn) to 1 (learn)"
    return ""


def _unlike(part: str, rows: Rows) -> Iterator[str]:
    """Yield a set of which some rows have something that others must have, too, and have not."""
    for subject, has in (
        ("question", [not row.is_plain_text for row in rows]),
        ("wrong answers", [bool(row.perturbed_answers) for row in rows]),
        ("options", [row.answer_index is not None for row in rows]),
    ):
        if any(has) and not all(has):
            i, other = has.index(False), has.index(True)
            yield (
                f"{_place(part, i, rows[i])}: no {subject}, but {_place(part, other, rows[other])} "
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
    rule = "a row is forgotten or retained, so remove one of the two"
    yield from _shared((split.name, split.forget), (split.retain_name, split.retain), rule)


def holdout_faults(benchmark: Benchmark, rows: Dataset, split: Split) -> Iterator[str]:
    """Yield rows of holdout sets on which a model is trained."""
    trained = {"full": rows.full, split.name: split.forget, split.retain_name: split.retain}
    trained |= {"pretraining": rows.pretraining, "facts": rows.facts}
    rule = "models are trained on it, and no model may have seen a holdout row, so remove this one"
    for name in sets_of(benchmark, "holdout"):
        part = f"set {name} of {split.name}", split.sets.get(name, ())
        for others in trained.items():
            yield from _shared(others, part, rule)


def whole_faults(benchmark: Benchmark, rows: Dataset, split: Split) -> Iterator[str]:
    """Yield rows that make forget rows and retain rows other than the full set.

    Without a retain model the full set may have rows that are in neither: those of other splits.
    """
    parts = Counter(map(words, (*split.forget, *split.retain)))
    full = Counter(map(words, rows.full))
    counts = (
        f"{len(split.forget)} forget rows and {len(split.retain)} retain rows of {len(rows.full)}"
    )
    for item, other, subject in ((full, parts, "in neither"), (parts, full, "not in `full`")):
        left = item - other
        if left and (item is parts or "retain" in benchmark.references):
            question, answer, *_ = next(iter(left))
            text = row_text(question or answer)
            yield f"{split.name}: {counts}; {left.total()} are {subject}, the first one {text}"


def observation_faults(benchmark: Benchmark, plan: MetricPlan, split: Split) -> Iterator[str]:
    """Yield sets without the observations of a metric that the benchmark names for them."""
    for measure in plan.measures:
        for name in measure.sets:
            if f"{measure.name}_{name}" not in plan.own:
                continue
            for read in sorted(measure.metric.reads):
                if text := _lacking(read, benchmark.set_roles[name], split.sets.get(name, ())):
                    yield (
                        f"set {name} of {split.name}: metric {measure.name!r} reads {read!r}, and "
                        f"{text}; report it on other sets, or give the rows what is missing"
                    )


def _lacking(reads: Reads, role: Role, rows: Rows) -> str:
    """The reason why a set has no such observation; empty where it has."""
    without, lack = 0, "have none"
    if reads == "moments" and role not in MOMENTS:
        return f"sets of role {role} have none"
    if reads in ("generated", "rouge"):
        if role in SCORED_ONLY:
            return f"no answers are generated to sets of role {role}"
        without, lack = sum(row.is_scored_only for row in rows), "are scored, never generated"
    elif reads == "perturbed":
        without, lack = sum(not row.perturbed_answers for row in rows), "lack `perturbed_answers`"
    elif reads == "paraphrase" and not any(row.paraphrased_answer for row in rows):
        without = len(rows)
    return f"{without} of its {len(rows)} rows {lack}" if without else ""


def sets_of(benchmark: Benchmark, role: Role) -> list[str]:
    """Names of the evaluation sets with a role."""
    return [name for name, part in benchmark.set_roles.items() if part == role]


def _shared(item: tuple[str, Rows], other: tuple[str, Rows], rule: str) -> Iterator[str]:
    places = {words(row): (i, row) for i, row in enumerate(item[1])} if other[1] else {}
    for i, row in enumerate(other[1]):
        if result := places.get(words(row)):
            location = _place(other[0], i, row)
            yield f"{location}: the same row as {_place(item[0], *result)}; {rule}"


def words(row: Question) -> tuple[str, ...]:
    """Return the words of a row: question and answer first, then what a conversation has before."""
    context = [text for example in row.examples for text in example]
    texts = (row.question, row.answer, *context, row.system or "")
    return tuple(" ".join(text.split()) for text in texts)


def _place(part: str, index: int, row: Question) -> str:
    return row.place or f"{part}, row {index + 1}"
