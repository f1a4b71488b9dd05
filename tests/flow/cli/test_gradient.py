"""`unlearnbench methods gradient`: table, CSV and page."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


def test_gradients_as_table_csv_and_page(run: Run) -> None:
    code, out, _ = run("methods", "gradient", "ce-u", "idk", "--csv", "g.csv", "--out", "g.html")
    assert code == 0
    assert out.startswith("norm of the gradient     p = 1e-6")
    assert "idk: does not read the forgotten answers" in out
    assert Path("g.csv").read_text().startswith("method,probability,log_odds,norm,")
    assert "Gradient profiles" in Path("g.html").read_text()
    code, out, _ = run("methods", "gradient", "ce-u", "npo", "--cosine", "--csv", "c.csv")
    assert code == 0
    assert Path("c.csv").read_text().splitlines()[0] == "method,ce-u,npo"


def test_only_the_page_of_gradients_needs_plotly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("unlearnbench_dashboards")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    code, _, _ = run("methods", "gradient", "ce-u", "--csv", "g.csv")
    assert code == 0
    code, _, err = run("methods", "gradient", "ce-u", "--out", "g.html")
    assert code == 2
    assert "dashboard 'gradient'" in err
    assert "plotly" in err
    assert not Path("g.html").exists()
