"""`unlearnbench benchmarks list`, `show`, `check` and `new`; a plan refuses unsound benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from unlearnbench.api import registry
from unlearnbench.cli.options import completion
from unlearnbench.testing import BENCHMARK_CHECKS

Run = Callable[..., tuple[int, str, str]]

SUMS = """\
from unlearnbench.api import (
    Benchmark, Dataset, Headline, HeadlineMetric, MetricUse, Question, Split
)

class Sums(Benchmark):
    '''Sums in words: own work.'''

    roles = {"retain": "retain", "forget": "forget", "unseen": "holdout"}
    references = frozenset({"start"})
    headline = Headline(
        HeadlineMetric("probability_retain", "Kept", "kept"),
        HeadlineMetric("probability_forget", "Left", "left", better="lower"),
    )

    def metrics(self, profile):
        return (MetricUse("probability", ("retain", "forget")),)

    def load(self, splits):
        rows = tuple(Question(f"What is {i} and {i}?", f"It is {2 * i}.") for i in range(10))
        unseen = (Question("What is 99?", "99."),)
        sets = {"retain": rows[1:], "forget": rows[:1], "unseen": unseen}
        others = (Question("Say 1.", "1!"),)
        found = {key: Split(key, rows[:1], rows[1:], sets) for key in splits}
        return Dataset("sums", rows, found, pretraining=others)
"""
CONFIG = """\
name: own
data: {source: sums}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
methods: [ce-u]
learning_rates: [1.0e-5]
"""


def test_list_has_rows_sets_splits_headline_and_package(run: Run) -> None:
    _, out, _ = run("benchmarks", "list")
    assert out.splitlines()[0].split()[:4] == ["benchmark", "rows", "sets", "splits"]
    (line,) = [line for line in out.splitlines() if line.startswith("tofu ")]
    assert line.split()[1] == "-", "its rows are the hub's"
    assert f"unlearnbench {registry.find('benchmarks', 'tofu').version}" in line
    _, out, _ = run("benchmarks", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows.keys() == {*registry.names("benchmarks")} == {*completion("benchmarks")()}
    assert (rows["synthetic"]["rows"], rows["tofu"]["rows"]) == (800, None)
    assert rows["tofu"]["splits"] == ["0.01", "0.05", "0.1"]
    assert rows["tofu"]["references"] == ["retain", "start"]
    assert rows["synthetic"]["headline"] == ["Model Utility", "log₁₀ Forget Quality"]


def test_a_benchmark_that_raises_is_listed_with_its_fault(run: Run) -> None:
    Path("sums.py").write_text(SUMS.replace("range(10)", "range(rows)"))
    code, out, _ = run("benchmarks", "list", "--plugin", "sums.py")
    assert code == 0
    assert "`load` of benchmark Sums raised UnboundLocalError" in out
    assert "(sums.py:" in out


def test_show_has_sets_metrics_headline_and_the_section(run: Run) -> None:
    code, out, _ = run("benchmarks", "show", "synthetic")
    assert code == 0
    assert "unlearnbench.benchmarks.synthetic:Synthetic" in out
    assert "forgotten  log10_forget_quality  log₁₀ Forget Quality" in out
    assert "real_authors  general" in out
    assert "refusals" in out
    assert "str | None" in out
    last = out.splitlines()[-1]
    assert last.startswith("in a config:  data: {source: synthetic, questions_per_author: 20,")
    _, out, _ = run("benchmarks", "show", "tofu", "--json")
    shown = json.loads(out)
    assert shown["roles"]["holdout"] == "holdout"
    assert shown["headline"]["forgotten"]["test"]["label"] == "Forget Quality"
    assert {"metric": "probability", "sets": ["retain", "forget"], "settings": {}} in shown[
        "metrics"
    ]
    assert [one["name"] for one in shown["settings"]][:2] == ["source", "refusals"]


def test_check_explains_a_fault_in_a_file(run: Run) -> None:
    Path("sums.py").write_text(
        SUMS.replace('"What is 99?", "99."', '"What is 4 and 4?", "It is 8."')
    )
    code, out, _ = run("benchmarks", "check", "sums.py", "--only", "rows", "--only", "disjoint")
    assert code == 1, out
    explained = out[out.index("\nsums: splits\n") :]
    assert "splits 0.01 and 0.05 forget the same rows" in explained
    assert "unlearnbench benchmarks check sums --only splits --plugin sums.py" in explained
    assert out.splitlines()[-1].startswith("sums: 1 fault, 2 checks not run, ")
    code, out, _ = run("benchmarks", "check", "--all", "--only", "metrics")
    assert out.splitlines()[0].split() == ["benchmark", "metrics", "splits"], "sums is at fault"


def test_check_is_no_success_where_rows_are_out_of_reach(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, out, _ = run("benchmarks", "check", "tofu", "--only", "splits", "--json")
    assert code == 1
    (only,) = json.loads(out)["tofu"]
    assert only["verdict"] == "not run"
    assert "--set data.path=FOLDER" in only["seen"]


def test_the_package_that_new_writes_conforms_and_can_be_planned(run: Run) -> None:
    code, out, _ = run("benchmarks", "new", "my-benchmark")
    assert code == 0
    assert "unlearnbench benchmarks check my-benchmark" in out
    project = Path("my-benchmark/pyproject.toml").read_text()
    assert '[project.entry-points."unlearnbench.benchmarks"]\nmy-benchmark = ' in project
    file = "my-benchmark/my_benchmark.py"
    assert len(Path(file).read_text().splitlines()) < 50
    code, out, _ = run("benchmarks", "check", file, "--json")
    results = json.loads(out)["my-benchmark"]
    assert code == 0
    assert [one["check"] for one in results] == [check.name for check in BENCHMARK_CHECKS]
    assert {one["verdict"] for one in results} == {"passed"}
    source = Path("my-benchmark/tests/test_my_benchmark.py").read_text()
    names: dict[str, object] = {}
    exec(source.replace("from my_benchmark", "from unlearnbench_plugin_my_benchmark"), names)
    test = names["test_a_tenth_is_forgotten"]
    assert callable(test)
    test()
    Path("own.yaml").write_text(CONFIG.replace("sums", "my-benchmark"))
    code, out, err = run("plan", "own.yaml", "--plugin", file, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["counts"]["runs"] == 1
