"""Numbers, settings and durations as text."""

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

from unlearnbench.api.benchmark import SplitKey, split_percent
from unlearnbench.results.setting_value import UNSET
from unlearnbench.results.setting_value import value_text as exact_text
from unlearnbench.stats.t_interval import Interval


@lru_cache(maxsize=1024)
def rate_text(rate: float | None) -> str:
    """Format a learning rate as in a paper: `2e-5`, and 0.001 as `1e-3`."""
    if rate is None:
        return "none"
    mantissa, _, exponent = f"{rate:e}".partition("e")
    text = f"{float(mantissa):g}e{int(exponent)}"
    # All digits, if six do not tell the rate from others.
    return text if float(text) == rate else f"{Decimal(repr(rate)):e}"


def split_cell(split: SplitKey) -> str:
    """Format a split below or behind the word "forget": `10 %` for 0.1; `books`."""
    return split_percent(split).removeprefix("forget ")


def signed(value: float | None, digits: int) -> str:
    """Format a number with a true minus sign; None as the empty text."""
    return "" if value is None else f"{value:.{digits}f}".replace("-", "\u2212")


def sort_key(value: float | None) -> str:
    """Write the number that a cell is sorted by, in full; None as the empty text."""
    return "" if value is None else repr(float(value))


def interval_text(interval: Interval, digits: int = 2) -> str:
    """Format an interval; of two seeds, their range."""
    name = "min-max " if interval.is_range else ""
    return f"{name}[{signed(interval.low, digits)}, {signed(interval.high, digits)}]"


def inside_score(interval: Interval | None) -> Interval | None:
    """Cut the interval of a score at 0 and 1, see `Interval.within`."""
    return None if interval is None else interval.within((0.0, 1.0))


def interval_names(intervals: Iterable[Interval | None]) -> list[str]:
    """Name the intervals in brackets, by their numbers of seeds; those over questions last."""
    order: dict[str, tuple[bool, int]] = {}
    for interval in intervals:
        if interval is not None:
            order[interval.name] = interval.over == "questions", interval.n
    return sorted(order, key=order.__getitem__)


def short(value: float | None, digits: int = 4) -> float | None:
    """Round to significant digits, as a figure shows them; None for NaN and infinities."""
    if value is None or not abs(value) < float("inf"):
        return None
    return float(f"{value:.{digits}g}")


def value_text(value: Any) -> str:
    """Format the value of a setting: texts as they are, everything else as JSON."""
    if value is UNSET:
        return str(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def value_texts(values: Iterable[Any]) -> dict[str, str]:
    """Format values so that no two of them look alike.

    Returns:
        The texts by the values as JSON (`setting_value.value_text`).
    """
    short = {exact_text(value): value_text(value) for value in values}
    is_distinct = len({*short.values()}) == len(short)
    return short if is_distinct else {text: text for text in short}


def prose(text: str) -> Markup:
    """Format a sentence: what stands between backticks as code, and `80 %` on one line."""
    parts = text.replace(" %", "\N{NO-BREAK SPACE}%").split("`")
    pieces = [
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part)
        for i, part in enumerate(parts)
    ]
    return Markup().join(pieces)


def flatten(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    """List name and value of all settings in a nested mapping, without those that are None."""
    if not isinstance(values, Mapping):
        return []
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        path = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            pairs += flatten(value, f"{path} · ")
        elif value is not None:
            pairs.append((path, value_text(value)))
    return pairs
