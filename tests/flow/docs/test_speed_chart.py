"""The chart of the page on speed shows the times of the page's table."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SPEED = ROOT / "docs" / "concepts" / "speed.md"
PAGE = """\
<!-- chart of the table below -->

| what is timed | device | usual way | unlearnbench |
|---|---|---|---|
| a run | one H100 | 1,200 s | 300 s |
| *a slow* one | two cores | 10.5 s | 21 s |

The end.
"""


@pytest.fixture
def speed_chart(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which lies beside the other modules that generate pages."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "generate")
    return importlib.import_module("speed_chart")


def test_a_bar_is_our_part_of_the_usual_time(speed_chart: Any) -> None:
    page = speed_chart.with_chart(PAGE)
    assert re.findall(r"width: ([\d.]+)%", page) == ["25.0", "100.0"]
    assert re.findall(r'class="value">([^<]+)<', page) == ["4.0×", "0.5×"]
    assert page.endswith(PAGE.partition("-->")[2])


def test_a_page_without_the_place_stays_as_it_is(speed_chart: Any) -> None:
    text = PAGE.partition("-->")[2]
    assert speed_chart.with_chart(text) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("1,200 s", "20 min", "'20 min' is no number of seconds"), ("usual way", "plain", "columns")],
)
def test_a_table_that_cannot_be_read_is_an_error(
    speed_chart: Any, old: str, new: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        speed_chart.with_chart(PAGE.replace(old, new))


def test_the_factors_of_the_table_are_those_of_its_times(speed_chart: Any) -> None:
    text = SPEED.read_text(encoding="utf-8")
    stated = [float(number) for number in re.findall(r"\*\*([\d.]+)×\*\*", text)]
    timings = [*speed_chart.timings(text)]
    assert [round(each.usual / each.ours, 1) for each in timings] == stated


def test_times_of_the_table_are_among_the_measurements(speed_chart: Any) -> None:
    measured = (ROOT / "docs" / "develop" / "measurements.md").read_text(encoding="utf-8")
    text = SPEED.read_text(encoding="utf-8")
    pairs = re.findall(r"\| ([\d,.]+)\s+s \| ([\d,.]+)\s+s \|", text)
    times = [time for pair in pairs for time in pair]
    assert len(pairs) == len([*speed_chart.timings(text)])
    assert [time for time in times if time not in measured] == []
