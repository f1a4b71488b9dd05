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
    if float(text) == rate:
        return text
    # Six digits may not distinguish the rate from others, so it gets all its digits.
    return f"{Decimal(repr(rate)):e}"


def split_cell(split: SplitKey) -> str:
    """Format a split below or after the word "forget": 0.1 as `10 %`, `books` as it is."""
    return split_percent(split).removeprefix("forget ")


def signed(value: float | None, digits: int) -> str:
    """Format a number with a true minus sign. None becomes the empty text."""
    return "" if value is None else f"{value:.{digits}f}".replace("-", "\u2212")


def sort_key(value: float | None) -> str:
    """Write the number by which a cell is sorted, with all digits. None becomes the empty text."""
    return "" if value is None else repr(float(value))


def interval_text(interval: Interval, digits: int = 2) -> str:
    """Format an interval: `[0.41, 0.52]`, and `min-max [0.41, 0.52]` for the range of two seeds."""
    name = "min-max " if interval.is_range else ""
    return f"{name}[{signed(interval.low, digits)}, {signed(interval.high, digits)}]"


def inside_score(interval: Interval | None) -> Interval | None:
    """Cut the interval of a score at 0 and 1, see `Interval.within`."""
    return None if interval is None else interval.within((0.0, 1.0))


def interval_names(intervals: Iterable[Interval | None]) -> list[str]:
    """List the different names of intervals, such as `95 % t interval of the mean over 3 seeds`.

    They are sorted by the number of seeds. Intervals over questions come last.
    """
    order_of_name: dict[str, tuple[bool, int]] = {}
    for interval in intervals:
        if interval is not None:
            order_of_name[interval.name] = interval.over == "questions", interval.n
    return sorted(order_of_name, key=order_of_name.__getitem__)


def short(value: float | None, digits: int = 4) -> float | None:
    """Round to significant digits, as a figure shows them. NaN and infinities become None."""
    if value is None:
        return None
    # Every comparison with NaN is false.
    is_finite = abs(value) < float("inf")
    return float(f"{value:.{digits}g}") if is_finite else None


def value_text(value: Any) -> str:
    """Format the value of a setting: a text as it is, and everything else as JSON."""
    if isinstance(value, str):
        return value
    if value is UNSET:
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def value_texts(values: Iterable[Any]) -> dict[str, str]:
    """Format values so that no two of them look alike, such as the text "1" and the number 1.

    Returns:
        The texts by the values as JSON (`setting_value.value_text`).
    """
    text_of_value = {exact_text(value): value_text(value) for value in values}
    is_distinct = len(set(text_of_value.values())) == len(text_of_value)
    return text_of_value if is_distinct else {exact: exact for exact in text_of_value}


def prose(text: str) -> Markup:
    """Format a sentence for the page: text between backticks as code, and `80 %` on one line."""
    pieces: list[Markup] = []
    # Backticks come in pairs, so every second piece stood between two of them.
    is_code = False
    for piece in text.replace(" %", "\N{NO-BREAK SPACE}%").split("`"):
        pieces.append(Markup("<code>{}</code>").format(piece) if is_code else escape(piece))
        is_code = not is_code
    return Markup().join(pieces)


def flatten(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    """List names and values of the settings in a nested mapping, without those that are None.

    Args:
        values: Settings by name. A value may be a mapping again.
        prefix: Beginning of all names.

    Returns:
        Pairs such as `("lora · rank", "8")` for `{"lora": {"rank": 8}}`.
    """
    if not isinstance(values, Mapping):
        return []
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        full_name = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            pairs += flatten(value, f"{full_name} · ")
        elif value is not None:
            pairs.append((full_name, value_text(value)))
    return pairs
