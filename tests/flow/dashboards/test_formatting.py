"""Numbers and values of settings as text."""

import importlib
import math
import random
from typing import Any

from unlearnbench.results.setting_value import UNSET

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
