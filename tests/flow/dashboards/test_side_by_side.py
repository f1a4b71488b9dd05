"""Numbers side by side on the page belong together: intervals and bounds contain them."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import pytest

from .attacked_records import under_attacks
from .conftest import METHODS, build, report_of, with_tokens
from .sections.test_scorecard import scored

if TYPE_CHECKING:
    from .conftest import Fabric

ROUNDED = 0.005
"""Half of the last digit of the numbers with fewest digits."""
NUMBER = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
INTERVAL = re.compile(rf"{NUMBER}\s+(?:min-max )?\[{NUMBER},\s{NUMBER}(?: %)?\]")
BOUND = re.compile(rf"{NUMBER} ≤ {NUMBER}")


def shown_text(page: str) -> str:
    """The text of a page without its scripts, with plain minus signs."""
    body = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]*>", " ", body)).replace("\N{MINUS SIGN}", "-")
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_intervals_and_bounds_contain_the_numbers_before_them(fabric: Fabric, seeds: int) -> None:
    runs = [
        with_tokens(
            fabric.run(method, points=((0.8, -5.0 - seed),), seed=seed, rows=30),
            0.1 + 0.25 * seed,
            ahead=1.5 - seed,
        )
        for method in [*METHODS][-4:]
        for seed in range(seeds)
    ]
    references = [
        with_tokens(fabric.reference("fine-tuned", rows=30), 0.0, ahead=2.0),
        with_tokens(fabric.reference("retain", rows=30), 0.8, ahead=0.0),
    ]
    records = under_attacks(scored([*references, *runs]))
    text = shown_text(build(report_of(records, "mine")))
    found = [tuple(map(float, match)) for match in INTERVAL.findall(text)]
    assert len(found) > 5
    for value, low, high in found:
        assert low - ROUNDED <= value <= high + ROUNDED, (value, low, high)
    bounds = [tuple(map(float, match)) for match in BOUND.findall(text)]
    assert bounds
    assert all(value <= bound for value, bound in bounds)
