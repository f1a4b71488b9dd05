"""True facts in the roles of TOFU's real authors and world facts, for the synthetic benchmark.

They are written by hand in `facts.json`, each as `[question, right answer, wrong, wrong, wrong]`.
As in TOFU, an answer is a name or a word, and there is no paraphrase.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Literal

from unlearnbench.api.benchmark import Question


@cache
def facts(role: Literal["real_authors", "world_facts"]) -> tuple[Question, ...]:
    """Return questions about real authors, or about the world.

    Real authors are close to the subjects of the forget set, and the world is far from them.
    """
    text = files("unlearnbench.benchmarks").joinpath("facts.json").read_text(encoding="utf-8")
    rows: list[tuple[str, str, str, str, str]] = json.loads(text)[role]
    return tuple(
        Question(question, answer, perturbed_answers=tuple(wrong_answers))
        for question, answer, *wrong_answers in rows
    )
