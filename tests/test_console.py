"""A person is told what runs and how long it takes; a pipe gets plain lines."""

from __future__ import annotations

import io

import pytest

from unlearnbench.console import Console, duration, finite


def test_a_terminal_gets_a_drawn_table() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    console = Console(out, io.StringIO())
    console.table(("name", "value"), [("a[b]", 1.5), ("c", None)], "title")
    assert "a[b]" in out.getvalue()
    assert "1.5" in out.getvalue()


def test_a_plain_table_is_aligned() -> None:
    out = io.StringIO()
    Console(out, io.StringIO()).table(("name", "n"), [("ce-u", 1.0), ("x", None), ("y", 20)])
    assert out.getvalue() == "name   n\nce-u   1\nx      -\ny     20\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_json_has_no_infinities() -> None:
    nan, inf = float("nan"), float("inf")
    values = finite({"a": 1.0, "b": nan, "c": -inf, "d": None})
    assert values == {"a": 1.0, "b": None, "c": None, "d": None}
