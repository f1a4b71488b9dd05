"""Tables of best settings: columns, intervals, captions, and what LaTeX must escape."""

import csv
import io
from collections.abc import Iterable
from typing import Any

import pytest

from unlearnbench.analysis.best_settings import best_per_method, panels
from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import RecordError
from unlearnbench.report.best_table import best_table
from unlearnbench.results.outcomes import RunOutcome
from unlearnbench.results.table import Table, TableRow

from ...numbers.analysis.conftest import table_row


def row(method: str, utility: float = 0.9, quality: float = -9.0, seed: int = 0) -> TableRow:
    """A row after an epoch, or of the start model."""
    numbers = {"model_utility": utility, "log10_forget_quality": quality}
    if method == "fine-tuned":
        return table_row(method, method, numbers)
    place: dict[str, Any] = {"learning_rate": 1e-4, "seed": seed, "epoch": 3}
    return table_row("run", method, numbers, run_id=f"{method} {seed}", **place)


def results(rows: Iterable[TableRow]) -> Results:
    """Results of these rows."""
    return Results(name="", records=(), table=Table(rows=tuple(rows)))


@pytest.fixture
def rows() -> tuple[TableRow, ...]:
    """Three seeds of a method that forgets, and one that keeps nothing."""
    good = [row("a_b & c", seed=seed, utility=0.8, quality=-1.5 - seed) for seed in range(3)]
    return (row("fine-tuned", utility=0.9, quality=-9.0), *good, row("zero", utility=0.1))


def test_latex_has_intervals_a_caption_and_no_bare_sign(rows: Any) -> None:
    text = best_table(results(rows), "latex")
    assert "\\begin{tabular}{lrrrrr}" in text
    assert "a\\_b \\& c & $-2.50$ [$-4.98$, $-0.02$] & $0.800$ [$0.800$, $0.800$]" in text
    assert "highest Forget Quality among settings that keep at least 80 \\% of" in text
    assert "Brackets: 95 \\% t interval of the mean over 3 seeds." in text
    assert "zero &  &  &  &  &  \\\\" in text
    assert text.count("{") == text.count("}")


def test_markdown_has_the_same_cells(rows: Any) -> None:
    lines = best_table(results(rows), "markdown").splitlines()
    assert lines[0].startswith("| Method | log10 Forget Quality | Model Utility |")
    assert lines[2].startswith("| a_b & c | -2.50 [-4.98, -0.02] | 0.800 [0.800, 0.800] |")


def test_csv_has_every_digit_and_reads_back(rows: Any) -> None:
    first, second = csv.DictReader(io.StringIO(best_table(results(rows), "csv")))
    (best, *_) = (one.setting for one in best_per_method(panels(rows)) if one.setting)
    interval = best.interval("log10_forget_quality")
    assert interval is not None
    assert float(first["log10_forget_quality_low"]) == interval.low
    assert (first["seeds"], second["learning_rate"]) == ("0 1 2", "")


def test_nothing_to_print_is_an_error_that_names_the_reasons() -> None:
    ended = [RunOutcome("npo at 0.1", "collapsed", "NaN loss at step 1 (epoch 1)")]
    expected = "no run was evaluated.*: collapsed: npo at 0.1: NaN loss at step 1 .epoch 1.$"
    with pytest.raises(RecordError, match=expected):
        best_table(results([row("fine-tuned")]), without_result=ended)
