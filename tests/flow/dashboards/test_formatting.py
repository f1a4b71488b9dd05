"""Numbers and values of settings as text."""

import importlib
import math
import random
from typing import Any

from unlearnbench.results.setting_value import UNSET
from unlearnbench.stats.t_interval import Interval

module: Any = importlib.import_module("unlearnbench_dashboards.formatting")


def test_different_rates_have_different_texts() -> None:
    assert [module.rate_text(rate) for rate in (2e-5, 0.001, 3.0, 1.5e-4)] == [
        *("2e-5", "1e-3", "3e0", "1.5e-4")
    ]
    draw = random.Random(0)
    for _ in range(500):
        rate = draw.choice((1e-5, 3.0, draw.random() * 10.0 ** -draw.randrange(9)))
        near = draw.choice((math.nextafter(rate, 1.0), rate * (1 + 1e-9)))
        assert float(module.rate_text(rate)) == rate
        assert module.rate_text(near) != module.rate_text(rate)


def test_different_values_have_different_texts() -> None:
    assert module.value_texts(["a", 0.1, True]) == {'"a"': "a", "0.1": "0.1", "true": "true"}
    alike: list[Any] = [1, 1.0, True, "1", "1.0", "true", UNSET, "default", [1], "[1]"]
    texts = module.value_texts(alike)
    assert len({*texts.values()}) == len(alike)


def test_a_score_is_drawn_with_its_interval_inside_the_bar() -> None:
    page_data: Any = importlib.import_module("unlearnbench_dashboards.page_data")
    macro = page_data._environment().get_template("templates/score_bar.html.j2").module
    drawn = str(macro.score_bar(0.84, Interval(0.84, 0.7, 1.2, 0.1, 3), start=0.0, retain=1.0))
    assert 'class="fill" style="width:84.0%"' in drawn
    assert 'class="range" style="left:70.0%;right:calc(100% - 100%)"' in drawn
    assert 'class="start" title="start model" style="left:0%"' in drawn
    assert 'class="retain" title="retain model" style="left:100%"' in drawn
    empty = str(macro.score_bar(None, Interval(0.84, 0.7, 1.2, 0.1, 3)))
    assert "unscored" in empty
    assert "range" not in empty
