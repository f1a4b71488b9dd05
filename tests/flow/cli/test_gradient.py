"""`unlearnbench methods gradient`: table, CSV and page."""

from pathlib import Path

from ...factories.command_line import Run


def test_gradients_as_table_csv_and_page(run: Run) -> None:
    code, out, _ = run("methods", "gradient", "ce-u", "idk", "--csv", "g.csv", "--out", "g.html")
    assert code == 0
    assert out.startswith("norm of the gradient     p = 1e-6")
    assert "idk: does not read the forgotten answers" in out
    assert Path("g.csv").read_text().startswith("method,probability,log_odds,norm,")
    assert "Gradient profiles" in Path("g.html").read_text()
