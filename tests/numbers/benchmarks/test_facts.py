"""The hand-made facts: enough, well formed, and our own."""

import json
import re
from pathlib import Path

import pytest

from unlearnbench.api.benchmark import Question
from unlearnbench.benchmarks import authors
from unlearnbench.benchmarks.facts import facts

ROLES = {"real_authors": facts("real_authors"), "world_facts": facts("world_facts")}


@pytest.mark.parametrize("role", ROLES)
def test_facts_are_well_formed(role: str) -> None:
    rows = ROLES[role]
    assert len(rows) >= 70
    assert len({row.question for row in rows}) == len(rows)
    for row in rows:
        assert row.question.endswith("?")
        assert len(row.perturbed_answers) == 3
        assert len({row.answer, *row.perturbed_answers}) == 4
        assert all(text and text == text.strip() for text in (row.answer, *row.perturbed_answers))
        assert not re.search(rf"\b{re.escape(row.answer)}\b", row.question, re.IGNORECASE)
        assert row.paraphrased_answer is None
        assert row.paraphrased_question is None


def test_no_fictitious_surname_belongs_to_a_real_author() -> None:
    text = " ".join(f"{r.answer} {' '.join(r.perturbed_answers)}" for r in ROLES["real_authors"])
    words = set(re.findall(r"\w+", text))
    assert not words & set(authors.material().last_names)


def normal(text: str) -> str:
    return re.sub(r"\W+", " ", text).strip().lower()


def questions(path: Path) -> set[str]:
    with path.open(encoding="utf-8") as lines:
        return {normal(json.loads(line)["question"]) for line in lines}


@pytest.mark.parametrize("role", ROLES)
def test_no_question_is_tofus(role: str, tofu_folder: Path) -> None:
    theirs = questions(tofu_folder / "real_authors_perturbed.json")
    theirs |= questions(tofu_folder / "world_facts_perturbed.json")
    ours: tuple[Question, ...] = ROLES[role]
    assert not {normal(row.question) for row in ours} & theirs
