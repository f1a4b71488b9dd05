"""True facts in the roles of TOFU's real authors and world facts, for the synthetic benchmark.

They are written by hand in `facts.json`, each as `[question, right answer, wrong, wrong, wrong]`;
as in TOFU, an answer is a name or a word and there is no paraphrase.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from unlearnbench.data.benchmark import Question


@cache
def real_authors() -> tuple[Question, ...]:
    """Questions about authors who exist: knowledge next to what is forgotten."""
    return _facts("real_authors")


@cache
def world_facts() -> tuple[Question, ...]:
    """Questions about the rest of the world: knowledge far from what is forgotten."""
    return _facts("world_facts")


def _facts(role: str) -> tuple[Question, ...]:
    text = files("unlearnbench.data").joinpath("facts.json").read_text(encoding="utf-8")
    rows: list[tuple[str, str, str, str, str]] = json.loads(text)[role]
    return tuple(
        Question(question, answer, perturbed_answers=tuple(wrong))
        for question, answer, *wrong in rows
    )
