"""The page on `results.csv` has every column that such a table can have."""

from __future__ import annotations

import re
from pathlib import Path

from unlearnbench.evaluation.columns import known_columns
from unlearnbench.results.table import FIRST, LAST, VARIANT

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "results.md"


def test_every_column_is_described_once_with_its_direction() -> None:
    lines = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = [name for name, _ in lines]
    installed = known_columns()
    assert len(listed) == len({*listed})
    assert {*listed} >= {*FIRST, *LAST, VARIANT, *installed}
    for name, rest in lines:
        if name in installed:
            label, _, better = (cell.strip() for cell in rest.split(" | "))
            assert (label, better) == (installed[name].label, installed[name].better or "")
