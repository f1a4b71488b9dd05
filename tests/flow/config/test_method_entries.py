"""A method entry spans a grid of specs; what is wrong with one is said by the method's fields."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import make_plan
from unlearnbench.config.schema import RetainSpec

Load = Callable[[str], Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """The grids of a configuration whose methods, from its line 5 on, are the text given."""
    monkeypatch.chdir(tmp_path)

    def loaded(entries: str) -> Any:
        Path("bench.yaml").write_text(
            "name: good\nmodels: [{name: tiny, base: tiny}]\nforget_fractions: [0.1]\n"
            f"methods:\n{entries}\nlearning_rates: [1.0e-5]\n"
        )
        return load_config("bench.yaml").methods

    return loaded


def test_hyper_parameters_and_retain_terms(load: Load) -> None:
    (grid,) = load(
        "  - {method: npo, beta: [0.1, 1], retain: [null, {term: kl, weight: 2}],"
        " learning_rates: [1.0e-4]}\n",
    )
    assert grid.learning_rates == (1e-4,)
    kl = RetainSpec(term="kl", weight=2.0)
    found = [(spec.hyperparameters["beta"], spec.retain) for spec in grid.specs]
    assert found == [(0.1, None), (0.1, kl), (1.0, None), (1.0, kl)]
    assert {spec.hyperparameters["ignore_first_answer_tokens"] for spec in grid.specs} == {0}
    assert all(isinstance(beta, float) for beta, _ in found)


def test_where_no_rate_is_stated_each_method_has_its_own(tmp_path: Path) -> None:
    text = (
        "{name: own, models: [{name: tiny, base: tiny}], forget_fractions: [0.1], "
        "methods: [npo, rmu, {method: undial, learning_rates: [3.0e-4]}, eco]}"
    )
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    runs = make_plan(load_config(str(tmp_path / "own.yaml")), "data").runs
    rates = {run.method.name: run.learning_rate for run in runs}
    assert rates == {"npo": 1e-5, "rmu": 5e-5, "undial": 3e-4, "eco": None}


def test_retain_terms_in_short_form_and_as_lists(load: Load) -> None:
    short, listed = load(
        "  - {method: npo, retain: nll}\n"
        "  - {method: ce-u, retain: {term: [nll, kl], weight: [0.5, 1.0]}}\n",
    )
    assert [spec.retain for spec in short.specs] == [RetainSpec(term="nll")]
    assert [(s.retain.term, s.retain.weight) for s in listed.specs] == [
        ("nll", 0.5),
        ("nll", 1.0),
        ("kl", 0.5),
        ("kl", 1.0),
    ]
