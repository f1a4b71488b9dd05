"""The answers of a run's model as a page, for trackers whose tables cut long texts.

MLflow shows an HTML file beside the list of artifacts. Its own view of a table cuts each cell at
150 pixels. The page wraps texts, and its rows begin with those that a reviewer looks for: forget
rows whose answer is still close to the truth, and other rows whose answer is far from the truth.
"""

import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined, Template

from unlearnbench.api.tracker import AnswerTable


class AnswerRow(NamedTuple):
    """A row of a table of answers, in the order of its columns."""

    question: str
    answer: str
    truth: str
    start: str | None
    retain: str | None
    score: float | None
    """ROUGE-L recall of the answer."""
    set: str
    when: int


class AnswerSet(NamedTuple):
    """The rows of one evaluation set."""

    name: str
    is_forget: bool
    rows: Sequence[AnswerRow]


def answer_page(run: str, answers: AnswerTable) -> str:
    """Write the page of a run.

    Args:
        run: Name of the run.
        answers: Table of the run's answers, with at least one row.
    """
    rows = [AnswerRow._make(row) for row in answers.rows]
    sets: list[AnswerSet] = []
    for name in dict.fromkeys(row.set for row in rows):
        is_forget = name in answers.forget_sets
        of_set = [row for row in rows if row.set == name]
        sets.append(AnswerSet(name, is_forget, _sorted(of_set, is_forget)))
    return _template().render(
        run=run,
        when=f"{answers.unit} {rows[0].when}",
        sets=sets,
        has_start=any(row.start is not None for row in rows),
        has_retain=any(row.retain is not None for row in rows),
    )


def _sorted(rows: Sequence[AnswerRow], is_forget: bool) -> list[AnswerRow]:
    """Sort rows by score, so that the rows come first that a reviewer looks for.

    These are forget rows with a high score, which were not forgotten, and other rows with a low
    score, which unlearning damaged. Rows without a score come last.
    """

    def key(row: AnswerRow) -> float:
        if row.score is None:
            return math.inf
        return -row.score if is_forget else row.score

    return sorted(rows, key=key)


@cache
def _template() -> Template:
    text = (files("unlearnbench.report") / "answers.html.j2").read_text("utf-8")
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    return environment.from_string(text)
