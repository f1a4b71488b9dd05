"""The page of a run's answers: every text in full, the rows to look at first, nothing executed."""

import re
from html import unescape
from html.parser import HTMLParser

from unlearnbench.api.tracker import AnswerTable
from unlearnbench.report.answer_page import answer_page
from unlearnbench.report.answer_table import COLUMNS

LONG = "A very long answer. " * 40


class Cells(HTMLParser):
    """Reads the rows of a page's tables as texts of cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def table(*rows: tuple[str | float | int | None, ...], unit: str = "epoch") -> AnswerTable:
    return AnswerTable(COLUMNS, rows, ("forget",), unit)


def test_the_page_has_every_text_in_full() -> None:
    page = answer_page(
        "1e-3 s0 npo", table(("Who?", LONG, "Nobody.", "Somebody.", "No one.", 0.256, "forget", 8))
    )
    assert Cells(page).rows == [
        [
            *("Question, true answer", "Before (start model)", "After (this run)"),
            *("Retain model", "ROUGE-L"),
        ],
        ["Who?True: Nobody.", "Somebody.", LONG, "No one.", "0.26"],
    ]
    assert "<h1>Answers of 1e-3 s0 npo, epoch 8</h1>" in page


def test_rows_that_were_not_forgotten_or_were_damaged_come_first() -> None:
    scores = 0.2, None, 0.9, 0.5
    rows = [
        (f"{name}{score}?", "a", "t", "s", "r", score, name, 3)
        for name in ("forget", "retain")
        for score in scores
    ]
    page = answer_page("run", table(*rows))
    shown = re.findall(r"<b>(\w+[\d.]+|\w+)\?</b>", page)
    assert shown == [
        *("forget0.9", "forget0.5", "forget0.2", "forgetNone"),
        *("retain0.2", "retain0.5", "retain0.9", "retainNone"),
    ]
    assert page.index("forgotten least") < page.index("furthest from the truth")


def test_a_model_without_baselines_has_no_empty_columns() -> None:
    row = ("Who?", "I.", "Me.", None, None, None, "texts", 40)
    page = answer_page("start model", table(row, unit="step"))
    assert Cells(page).rows[0] == ["Question, true answer", "This model", "ROUGE-L"]
    assert Cells(page).rows[1] == ["Who?True: Me.", "I.", "–"]
    assert "start model, step 40" in page
    other = ("What?", "I.", "Me.", "Before.", None, 0.5, "texts", 40)
    assert Cells(answer_page("run", table(row, other))).rows[2][1] == "–", "unknown is not empty"


def test_answers_are_text_and_never_markup() -> None:
    evil = "<script>alert(1)</script> & {{ 7 * 7 }}"
    page = answer_page(evil, table((evil, evil, evil, evil, evil, 0.5, "forget", 1)))
    assert "<script" not in page
    assert unescape(page).count(evil) == 7, "title, heading and five texts"
