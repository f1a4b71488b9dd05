"""Sortable tables: every kind of cell in its place, in both directions.

The page's own script sorts random tables of a small stand-in for the browser's tables.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "dashboards" / "templates" / "tables.js"
HARNESS = """
const tables = JSON.parse(require("node:fs").readFileSync(0, "utf-8"));
const sorted = ({ numeric, rows }) => {
  const clicks = [];
  const heads = numeric.map((isNumeric) => ({
    classList: { contains: () => isNumeric }, childNodes: [], replaceChildren() {},
    getAttribute() { return this.sort ?? null; },
    setAttribute(name, value) { this.sort = value; },
    removeAttribute() { this.sort = null; },
  }));
  for (const head of heads) head.parentNode = { children: heads };
  const cell = ([text, value, span]) =>
    ({ textContent: text, colSpan: span, dataset: value === null ? {} : { value } });
  const body = { rows: rows.map((cells, number) => ({ number, cells: cells.map(cell) })) };
  body.append = (...ordered) => { body.rows = ordered; };
  const table = { tBodies: [body], tHead: { rows: [{ cells: heads }] } };
  const document = { querySelectorAll: () => [table], addEventListener() {} };
  const page = { listeners: [], whenLoaded: (action) => action(),
    element: () => ({ addEventListener: (name, action) => clicks.push(action) }) };
  new Function("page", "document", SCRIPT)(page, document);
  const before = [...body.rows];
  return clicks.map((click) => [0, 1].map(() => {
    body.rows = [...before];
    click();
    return body.rows.map((row) => row.number);
  }));
};
console.log(JSON.stringify(tables.map(sorted)));
"""
Cell = tuple[str, str | None, int]
"""Text, `data-value`, number of columns."""
SPAN: Cell = ("keeps too little", None, 2)


def sorted_by_the_page(tables: list[dict[str, Any]]) -> list[list[list[list[int]]]]:
    """The orders of rows after a first and a second click on each column, table by table."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = f"const SCRIPT = {json.dumps(SCRIPT.read_text('utf-8'))};\n{HARNESS}"
    done = subprocess.run(
        [node, "-e", script], input=json.dumps(tables), text=True, capture_output=True, check=True
    )
    orders: list[list[list[list[int]]]] = json.loads(done.stdout)
    return orders


def a_number(draw: random.Random) -> tuple[Cell, float]:
    """A cell that shows a number, and the number that it is sorted by."""
    value = draw.choice((1, 1, -1)) * round(10 ** draw.uniform(-3, 3), 3)
    plain = f"{value:.3f}"
    kind = draw.randrange(10)
    if kind == 0:
        return (plain, None, 1), float(plain)
    if kind == 1:
        return (plain.replace("-", "−"), None, 1), float(plain)
    if kind == 2:
        text = f"{plain} [{value - 1:.3f}, {value + 1:.3f}]"
        return (text.replace("-", "−"), None, 1), float(plain)
    if kind == 3:
        return (f"{plain} min-max [{value - 1:.2f}, {value:.2f}]", None, 1), float(plain)
    if kind == 4:
        return (f"{value:.0f} %", None, 1), float(f"{value:.0f}")
    if kind == 5:
        return (f"{value:.0f}\N{NO-BREAK SPACE}%", None, 1), float(f"{value:.0f}")
    if kind == 6:
        text = f"{value:e}"
        return (text, None, 1), float(text)
    if kind == 7:
        large = round(1e4 * value)
        return (f"{large:,}", None, 1), float(large)
    if kind == 8:  # in full behind what is shown
        return ("⚠ 0.00 [−1.00, 1.00]", repr(value), 1), value
    small = abs(value) * 1e-6
    return (f"≤ {small:.3g}", None, 1), float(f"{small:.3g}")


def a_cell(draw: random.Random) -> tuple[Cell, float | str | None]:
    kind = draw.random()
    if kind < 0.1:
        return (draw.choice(("", "–", " – ", "  ")), draw.choice((None, "")), 1), None
    if kind < 0.15:
        return ("never", "inf", 1), math.inf
    if kind < 0.25:
        text = draw.choice(("not attacked", "4-bit", "3rd", "keeps too little"))
        return (text, None, 1), text
    return a_number(draw)


def expected(keys: list[Any], direction: int) -> list[int]:
    """The order of rows: numbers, then texts, then empty cells; equal ones as they were."""

    def place(number: int) -> Any:
        key = keys[number]
        if key is None:
            return (2, 0.0)
        return (1, 0.0) if isinstance(key, str) else (0, direction * key)

    order = sorted(range(len(keys)), key=place)
    texts = [number for number in order if isinstance(keys[number], str)]
    texts.sort(key=lambda number: keys[number].lower(), reverse=direction < 0)
    start = sum(isinstance(key, float) for key in keys)
    return [*order[:start], *texts, *order[start + len(texts) :]]


def test_numbers_of_every_kind_are_sorted_as_numbers() -> None:
    draw = random.Random(0)
    tables: list[dict[str, Any]] = []
    keys: list[list[Any]] = []
    for _ in range(200):
        cells = [a_cell(draw) for _ in range(draw.randrange(1, 20))]
        keys.append([key for _, key in cells])
        tables.append({"numeric": [True], "rows": [[cell] for cell, _ in cells]})
    for of_table, ((first, second),) in zip(keys, sorted_by_the_page(tables), strict=True):
        as_sorted = [[of_table[i] for i in order] for order in (first, second)]
        assert as_sorted[0] == [of_table[i] for i in expected(of_table, -1)]
        assert as_sorted[1] == [of_table[i] for i in expected(of_table, 1)]


def test_equal_cells_stay_in_their_order() -> None:
    rows = [[("0.5", None, 1)], [("", None, 1)], [("0.50 [0.1, 0.9]", None, 1)], [("–", None, 1)]]
    (((first, second),),) = sorted_by_the_page([{"numeric": [True], "rows": rows}])
    assert first == second == [0, 2, 1, 3]


def test_a_cell_of_two_columns_moves_no_other_cell() -> None:
    draw = random.Random(1)
    tables: list[dict[str, Any]] = []
    keys: list[list[float | None]] = []
    for _ in range(50):
        rows: list[list[Cell]] = []
        of_last: list[float | None] = []
        for _ in range(9):
            last, key = a_number(draw)
            first: list[Cell] = [SPAN] if draw.random() < 0.4 else [("0.1", None, 1)] * 2
            rows.append([*first, last])
            of_last.append(key)
        tables.append({"numeric": [True, False, True], "rows": rows})
        keys.append(of_last)
    for of_table, orders, table in zip(keys, sorted_by_the_page(tables), tables, strict=True):
        descending, ascending = orders[2]
        assert [of_table[i] for i in ascending] == sorted(of_table, key=lambda key: key or 0.0)
        assert [of_table[i] for i in descending] == sorted(of_table, key=lambda key: -(key or 0.0))
        spanned = [len(row) == 2 for row in table["rows"]]
        for order in orders[0]:  # lines without a result come last
            assert [spanned[i] for i in order] == sorted(spanned)


def test_settings_in_a_label_are_sorted_by_their_values() -> None:
    draw = random.Random(2)
    tables: list[dict[str, Any]] = []
    keys: list[list[tuple[str, float]]] = []
    for _ in range(50):
        of_table = [
            (
                draw.choice(("ce-u", "dpo", "npo+nll")),
                draw.choice((1, -1)) * float(f"{10 ** draw.uniform(-6, 3):.3g}"),
            )
            for _ in range(12)
        ]
        keys.append(of_table)
        rows = [[(f"{family} (beta={value:g})", None, 1)] for family, value in of_table]
        tables.append({"numeric": [False], "rows": rows})
    for of_table, ((first, second),) in zip(keys, sorted_by_the_page(tables), strict=True):
        assert [of_table[i] for i in first] == sorted(of_table)
        assert [of_table[i] for i in second] == sorted(of_table, reverse=True)
