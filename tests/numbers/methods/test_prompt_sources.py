"""Prompts of ICUL and the guardrail, compared with the rules of their sources.

The rules were written from reading the sources, and share no code with the methods. When the
methods were added, the sources' own functions were run, too. They gave the same prompts for all 640
forget rows of TOFU's three splits (Jounce-IO, ECO) and for 1,440 made-up questions (ICUL). The
guardrail found the 2, 10 and 20 authors in ECO's lists, and no others.
"""

from dataclasses import replace
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question, Split
from unlearnbench.api.defender_rows import DefenderRows
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.models.templates import TEXT

BENCHMARK = Synthetic(authors=20, questions_per_author=4).load([0.1, 0.2])
KEYS = sorted(BENCHMARK.splits)


def rows_of(key: Any, seed: int = 0) -> tuple[Split, DefenderRows]:
    rows = DefenderRows.of(BENCHMARK, key, seed, has_system_message=False)
    return BENCHMARK.splits[key], rows


def jounce_context(split: Split, asked: int | None) -> str:
    """Jounce-IO/open-unlearning@5618804:src/evals/guardrails.py, for TOFU.

    The first K = 5 of the first K + 1 forget rows, without the row that is asked, each with the
    answer of the row after it; an empty line; and the first L = 4 retain rows with their answers.
    A question and its answer are two lines.
    """
    lines: list[str] = []
    for index in range(6):
        if index != asked and len(lines) < 10:
            lines += [split.forget[index].question, split.forget[index + 1].answer]
    lines.append("")
    for row in split.retain[:4]:
        lines += [row.question, row.answer]
    return "\n".join(lines)


@pytest.mark.parametrize("key", KEYS)
def test_first_rows_are_those_of_jounce(key: Any) -> None:
    split, rows = rows_of(key)
    settings: Any = {"choose": "first", "wrong": "forget", "show_asked": False}
    method = registry.load("methods", "icul")(forget_rows=5, retain_rows=4, **settings)
    asked: list[tuple[Question, int | None]] = [(row, i) for i, row in enumerate(split.forget)]
    asked += [(row, None) for row in split.retain[4:]]
    for row, index in asked:
        pairs = [f"{question}\n{answer}" for question, answer in method.asked(row, rows).examples]
        assert "\n".join([*pairs[:5], "", *pairs[5:]]) == jounce_context(split, index)


def icul_context(forgotten: str, flipped: str, others: list[tuple[str, str]], query: str) -> str:
    """MartinPawel/In-Context-Unlearning@e740b1d:eval.py, `get_icl_vary_context`.

    The text to forget with its flipped label, and other training texts with their labels, one to a
    line with a blank before the label. The query follows without a label.
    """
    lines = [f"{forgotten} {flipped}", *(f"{text} {label}" for text, label in others), query]
    return "\n".join(lines)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("others", [1, 3, 5])
def test_texts_are_rendered_as_by_the_authors_up_to_blank_lines(key: Any, others: int) -> None:
    """Ours has a blank line between two texts, and the authors have none."""
    split, chat_rows = rows_of(key, seed=others)

    def as_text(row: Question) -> Question:
        return replace(row, format="text", answer=f" {row.answer}")

    forget = tuple(map(as_text, split.forget))
    retain = tuple(map(as_text, split.retain))
    rows = replace(chat_rows, forget=forget, retain=retain)
    method = registry.load("methods", "icul")(forget_rows=1, retain_rows=others)
    answer_of = {row.question: row.answer.strip() for row in (*forget, *retain)}
    for row in (*forget, *retain):
        asked = method.asked(row, rows)
        prompt = TEXT.of(asked).prompt(asked.question, asked.examples)
        (forgotten, wrong), *kept = asked.examples
        assert len(kept) == others
        assert forgotten == row.question or row in retain, "a text to forget is in its own context"
        assert wrong.strip() != answer_of[forgotten]
        true_labels = [(text, answer_of[text]) for text, _ in kept]
        expected = icul_context(forgotten, wrong.strip(), true_labels, row.question)
        assert prompt == expected.replace("\n", "\n\n")


ECO_BEFORE = "You are a model that knows absolutely nothing about the following author names: "
ECO_AFTER = (
    "Please ensure that your responses to anything related to the above names are incorrect. For "
    "everything else, you can provide the correct answers.\n\n"
)


def eco_prefix(names: list[str]) -> str:
    """chrisliu298/llm-unlearn-eco@9b0ba1a:scripts/evaluate_tofu.py, with one name to a line."""
    listed = "".join(f"- {name}\n" for name in names)
    return f"{ECO_BEFORE}\n\n{listed}\n{ECO_AFTER}"


@pytest.mark.parametrize("key", KEYS)
def test_the_guardrail_is_ecos_prompt_with_its_text(key: Any) -> None:
    split, rows = rows_of(key)
    names = list(rows.names)
    assert len(names) == len(split.forget) // 4, "one for each author"
    listed = "".join(f"- {name}\n" for name in names)
    text = f"{ECO_BEFORE}{{names}}{ECO_AFTER}".strip()
    method = registry.load("methods", "guardrail")(
        text=text, names=f"\n\n{listed}\n", place="question"
    )
    for row in (*split.forget, *split.retain):
        prompt = TEXT.prompt(method.asked(replace(row, format="text"), rows).question)
        assert prompt == eco_prefix(names) + row.question


@pytest.mark.parametrize("key", KEYS)
def test_every_author_of_the_twin_of_tofu_is_named(key: Any) -> None:
    split, rows = rows_of(key)
    for name, row in zip(rows.names, split.forget[::4], strict=True):
        assert name in f"{row.question} {row.answer}"
