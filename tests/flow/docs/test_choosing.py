"""The numbers on the page about choosing a method are those of the study that it quotes."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
CHOOSING = (DOCS / "start" / "choosing-a-method.md").read_text(encoding="utf-8")
STUDY = (DOCS / "studies" / "real-model.md").read_text(encoding="utf-8")
RATES = {
    "NPO with NLL": "5e-5",
    "SimNPO with NLL": "5e-5",
    "General CE-U": "5e-5",
    "CE-U": "1e-5",
    "RMU, layer 8": "5e-4",
    "IDK": "1e-5",
}
"""Rate of the quoted row by method."""


def rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows of a page."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell."""
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", cell)]


def span(values: Sequence[float], digits: int) -> list[float]:
    """Return the smallest and the largest value, once if they are equal."""
    return sorted({round(value, digits) for value in (min(values), max(values))})


@pytest.mark.parametrize("method", RATES)
def test_quoted_numbers_are_those_of_the_study(method: str) -> None:
    [start] = [row for row in rows(STUDY) if row[0] == "start model" and len(row) == 8]
    [row] = [
        row for row in rows(STUDY) if row[0].startswith(method) and row[1:2] == [RATES[method]]
    ]
    [quoted] = [
        row for row in rows(CHOOSING) if row[0] == f"{method}, {RATES[method]}" and len(row) == 4
    ]
    shares = [100 * utility / numbers(start[2])[0] for utility in numbers(row[2])]
    assert numbers(quoted[1]) == span(shares, 0)
    assert numbers(quoted[2]) == span(numbers(row[4]), 2)
    returned = [row for row in rows(STUDY) if row[0].startswith(method) and row[-1].endswith("%")]
    measured = [numbers(row[-1]) for row in returned if len(row) == 6]
    assert numbers(quoted[3]) == (span(measured[0], 0) if measured else [])
