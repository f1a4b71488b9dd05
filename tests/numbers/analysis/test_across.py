"""Places of methods on several benchmarks, by hand."""

import pytest

from unlearnbench.analysis.across import places, standings
from unlearnbench.analysis.best_settings import Best
from unlearnbench.analysis.settings import Setting, average_seeds

from .conftest import table_row


def judged(**merits: tuple[float, float] | None) -> list[Best]:
    """Each method's best setting, of (forgotten, kept)."""

    def setting(family: str, forgotten: float, kept: float) -> Setting:
        numbers = {"log10_forget_quality": forgotten, "model_utility": kept}
        return average_seeds([table_row("run", family, numbers)])[0]

    return [
        Best("tiny", 0.1, family, family, None if pair is None else setting(family, *pair))
        for family, pair in merits.items()
    ]


def test_places_are_by_what_is_forgotten_then_kept() -> None:
    found = places(judged(a=(-1.0, 0.5), b=(-2.0, 0.9), c=(-1.0, 0.6), d=None, e=None))
    assert found == {"c": 1, "a": 2, "b": 3, "d": 4.5, "e": 4.5}
    assert places(judged(a=(-1.0, 0.5), b=(-1.0, 0.5))) == {"a": 1.5, "b": 1.5}


def test_mean_places() -> None:
    first = judged(a=(-1.0, 0.5), b=(-2.0, 0.5), c=None)
    second = judged(a=(-2.0, 0.5), b=(-1.0, 0.5), d=(-3.0, 0.5))
    third = judged(a=(-1.0, 0.5), b=(-2.0, 0.5))
    result = standings({"x": first, "y": second, "z": third})
    assert [(s.method, s.mean) for s in result] == [
        ("a", pytest.approx(4 / 3)),
        ("b", pytest.approx(5 / 3)),
        ("c", None),
        ("d", None),
    ]
    interval = result[0].interval
    assert interval is not None
    assert interval.high - interval.mean == pytest.approx(
        4.302653 * (1 / 3) ** 0.5 / 3**0.5, rel=1e-6
    )
    assert result[2].places == {"x": 3}
