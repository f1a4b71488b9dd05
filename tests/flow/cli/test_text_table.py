"""Tables and paragraphs that fit a terminal: no name is cut, and no number is broken."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlearnbench.base.console import Console
from unlearnbench.base.text_table import paragraph, table_lines, width_of

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=18)


def test_a_table_that_fits_has_a_line_for_each_row() -> None:
    lines = table_lines(("name", "value"), [("a", "1.5"), ("bc", "10")], numbers={1})
    assert lines == ["name  value", "a       1.5", "bc       10"]


def test_headings_are_broken_before_anything_else() -> None:
    rows = [("npo", "0.001", "some text")]
    lines = table_lines(
        ("method", "learning rate", "what it does"),
        rows,
        numbers={1},
        flowing={"what it does"},
        width=30,
    )
    assert lines == [
        "        learning",
        "method      rate  what it does",
        "npo        0.001  some text",
    ]


def test_sentences_flow_below_themselves() -> None:
    rows = [("npo", "push forget answers below the start model's probability")]
    lines = table_lines(("name", "summary"), rows, flowing={"summary"}, width=40)
    assert lines == [
        "name  summary",
        "npo   push forget answers below the",
        "      start model's probability",
    ]


def test_columns_that_do_not_fit_stand_in_tables_below_with_the_keys_again() -> None:
    rows = [("npo", "A", "0.123456", "0.234567"), ("dpo", "B", "0.345678", "0.456789")]
    lines = table_lines(("method", "of", "first", "second"), rows, {2, 3}, keys=2, width=21)
    assert lines == [
        "method  of     first",
        "npo     A   0.123456",
        "dpo     B   0.345678",
        "",
        "method  of    second",
        "npo     A   0.234567",
        "dpo     B   0.456789",
    ]


def test_a_wide_table_has_one_line_for_each_row() -> None:
    rows = [("npo", "word " * 40)]
    assert len(table_lines(("name", "summary"), rows, flowing={"summary"}, width=None)) == 2


@given(
    names=st.lists(WORDS, min_size=1, max_size=4, unique=True),
    numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9),
    sentence=st.lists(WORDS, min_size=1, max_size=30).map(" ".join),
)
def test_no_name_number_or_word_is_ever_broken(
    names: list[str], numbers: list[float], sentence: str
) -> None:
    texts = [f"{number:.6g}" for number in numbers]
    headings = ("name", *(f"n{i}" for i in range(len(texts))), "text")
    rows = [(name, *texts, sentence) for name in names]
    lines = table_lines(headings, rows, range(1, 1 + len(texts)), flowing={"text"}, width=60)
    assert max(map(len, lines)) <= 60
    words = " ".join(lines).split()
    assert {*names, *texts, *sentence.split()} <= {*words}


def test_a_number_keeps_its_per_cent_sign() -> None:
    assert paragraph("it keeps at least 80 % of it", 21) == "it keeps at least\n80 % of it"
    assert paragraph("one two three", 8, indent="  ") == "one two\n  three"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_no_terminal_shows_has_80_columns_unless_the_variable_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert width_of(io.StringIO()) == 80
    assert width_of(_Terminal()) == 80, "it has no size"
    monkeypatch.setenv("COLUMNS", "132")
    assert width_of(io.StringIO()) == 132
    monkeypatch.setenv("COLUMNS", "9")
    assert width_of(io.StringIO()) == 40, "no table fits less"


def test_a_note_is_broken_on_a_terminal_only() -> None:
    note = "warning: " + "word " * 30
    terminal, pipe = _Terminal(), io.StringIO()
    Console(err=terminal).note(note)
    Console(err=pipe).note(note)
    assert max(map(len, terminal.getvalue().splitlines())) <= 80
    assert pipe.getvalue() == f"{note}\n"


def test_a_terminal_and_a_pipe_get_the_same_table() -> None:
    pipe, terminal = io.StringIO(), _Terminal()
    for stream in (pipe, terminal):
        Console(out=stream).table(("name", "value"), [("[b]a[/b]", 1.0), ("x", None)], "title")
    assert pipe.getvalue() == terminal.getvalue()
    assert pipe.getvalue().splitlines() == [
        "title",
        "name      value",
        "[b]a[/b]      1",
        "x             -",
    ]
