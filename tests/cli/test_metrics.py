"""`unlearnbench metrics list`, `show`, `check` and `new`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from unlearnbench.api import registry
from unlearnbench.cli.options import completion
from unlearnbench.testing import METRIC_CHECKS

Run = Callable[..., tuple[int, str, str]]
DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "concepts/metrics.md").read_text(encoding="utf-8")
TUTORIAL = (DOCS / "tutorials/add-a-metric.md").read_text(encoding="utf-8")

MINE = """\
from unlearnbench.api import Metric

class Mine(Metric):
    '''P: own work'''
    label = "Mine"
    roles = frozenset({"forget"})

    def per_example(self, seen):
        return seen.answer_loss
"""


def test_list_has_reads_sets_direction_and_package(run: Run) -> None:
    _, out, _ = run("metrics", "list")
    (line,) = [line for line in out.splitlines() if line.startswith("extraction-strength ")]
    assert line.split()[1:5] == ["tokens", "forget,", "retain", "lower,"]
    assert f"unlearnbench {registry.find('metrics', 'rouge').version}" in line
    _, out, _ = run("metrics", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows.keys() == {*registry.names("metrics")} == {*completion("metrics")()}
    assert rows["rouge"]["sets"] == ["where it is named"]
    assert rows["forgotten"]["reads"] == ["retain model", "start model"]
    assert rows["private"]["reads"][0] == "retain model"


def test_the_page_of_metrics_has_each_as_it_is_declared(run: Run) -> None:
    _, out, _ = run("metrics", "list", "--json")
    cells = (re.split(r" \| ", line) for line in PAGE.splitlines() if line.startswith("| `"))
    rows = {line[0].strip("| `"): line for line in cells if len(line) == 6}
    assert rows.keys() == {*registry.names("metrics")}
    for one in json.loads(out):
        better, sets, reads = (cell.strip(" |") for cell in rows[one["name"]][3:])
        assert better == ", ".join(one["better"]), one["name"]
        assert sets == ", ".join(one["sets"]), one["name"]
        if one["reads"] != ["sets, columns"]:  # of a summary, in which it is not declared
            assert reads == ", ".join(one["reads"]), one["name"]


def test_the_page_of_metrics_says_of_each_what_it_means_and_when_it_lies() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| [`")]
    rows = {line.split("`")[1]: line.strip("| ").split(" | ") for line in lines}
    assert rows.keys() == {*registry.names("metrics")}
    assert len(lines) == len(rows), "one entry each"
    for name, cells in rows.items():
        assert len(cells) == 4, name
        assert all(len(cell) > 20 for cell in (cells[1], cells[3])), name


def test_the_example_of_the_tutorial_is_a_metric(run: Run, tmp_path: Path) -> None:
    (code,) = re.findall(r'```python title="first_token.py"\n(.*?)```', TUTORIAL, re.DOTALL)
    (tmp_path / "first_token.py").write_text(code)
    assert run("metrics", "check", str(tmp_path / "first_token.py"))[0] == 0
    body = code.partition("class ")[2].strip().splitlines()
    assert len(body) <= 10


def test_a_broken_metric_is_listed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = registry.Offer("metrics", "bad", "no.such:Thing", "stranger", "1.0")
    offers = registry.offers

    def with_broken(kind: registry.Kind) -> tuple[registry.Offer, ...]:
        return (*offers(kind), *[broken] * (kind == "metrics"))

    monkeypatch.setattr(registry, "offers", with_broken)
    code, out, _ = run("metrics", "list")
    assert code == 0
    assert "metric 'bad' of stranger 1.0 (no.such:Thing) is broken: ModuleNotFoundError" in out


def test_show_has_formula_columns_and_settings(run: Run) -> None:
    _, out, _ = run("metrics", "show", "mia-min-k")
    assert "mean of the ⌊K·L⌋ smallest log-probabilities" in out
    assert "mia_min_k_tpr" in out
    assert "K, share of the tokens" in out
    _, out, _ = run("metrics", "show", "exact-memorization", "--json")
    shown = json.loads(out)
    assert [c["name"] for c in shown["columns"]] == [
        "exact_memorization_forget",
        "exact_memorization_retain",
    ]
    assert [c["better"] for c in shown["columns"]] == ["lower", "higher"]
    assert run("metrics", "show", "model-utility")[0] == 0, "its setting has no default"


def test_check_explains_a_fault_in_a_file(run: Run) -> None:
    code, out, err = run("metrics", "check", "exact-memorization")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1 : len(METRIC_CHECKS) + 1]] == [
        check.name for check in METRIC_CHECKS
    ]
    Path("mine.py").write_text(MINE)
    code, out, _ = run("metrics", "check", "mine.py")
    assert code == 1
    explained = out[out.index("\nmine: values\n") :]
    assert "out of its bounds 0 to 1" in explained
    assert "unlearnbench metrics check mine --only values --plugin mine.py" in explained
    assert run("metrics", "check", "mine", "--only", "values", "--plugin", "mine.py")[0] == 1


def test_all_metrics_in_one_table(run: Run) -> None:
    code, out, _ = run("metrics", "check", "--all", "--only", "settings", "--only", "columns")
    assert code == 0
    assert out.splitlines()[0].split() == ["metric", "settings", "columns"]
    assert out.splitlines()[-1].startswith(f"{len(registry.names('metrics'))} metrics: no fault")


def test_the_package_that_new_writes_conforms(run: Run) -> None:
    code, out, _ = run("metrics", "new", "my-metric")
    assert code == 0
    assert out.splitlines()[:2] == ["my-metric/pyproject.toml", "my-metric/README.md"]
    assert "unlearnbench metrics check my-metric" in out
    project = Path("my-metric/pyproject.toml").read_text()
    assert (
        '[project.entry-points."unlearnbench.metrics"]\nmy-metric = "my_metric:MyMetric"' in project
    )
    code, out, _ = run("metrics", "check", "my-metric/my_metric.py", "--set", "first=2")
    assert (code, "my-metric: no fault" in out) == (0, True)
    source = Path("my-metric/tests/test_my_metric.py").read_text()
    names: dict[str, object] = {}
    exec(source.replace("from my_metric", "from unlearnbench_plugin_my_metric"), names)
    test = names["test_a_value_worked_by_hand"]
    assert callable(test)
    test()
    assert run("metrics", "new", "my-metric", "--out", "elsewhere")[0] == 2, "it is registered"
