"""A method entry spans a grid of specs; what is wrong with one is said by the method's fields."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import RetainSpec
from unlearnbench.errors import ConfigError

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


def test_infinite_scores(load: Load) -> None:
    (grid,) = load(
        "  - {method: general-ce-u, raw: true, forget_score: -.inf, retain_score: .inf}\n",
    )
    assert grid.specs[0].hyperparameters["forget_score"] == float("-inf")


@pytest.mark.parametrize(
    ("entry", "key", "message"),
    [
        ("ceu", "", "unknown method 'ceu'; did you mean 'ce-u'?"),
        ("grad_diff", "", "unknown method 'grad_diff'; did you mean 'gradient-difference'?"),
        ("GradAscent", "", "unknown method 'GradAscent'; did you mean 'gradient-ascent'?"),
        ("GA", "", "unknown method 'GA'; did you mean 'gradient-ascent'?"),
        ("KL", "", "unknown method 'KL'; did you mean 'kl-minimization'?"),
        ("SimNPO", "", "unknown method 'SimNPO'; did you mean 'simnpo'?"),
        ("focal", "", "unknown method 'focal'. Available: "),
        ("3", "", "expected a method's name or a section, got 3"),
        ("{methd: npo}", ".method", "missing: this key is required"),
        ("{method: npo, btea: 1}", ".btea", "unknown key; did you mean 'beta'? npo takes: "),
        ("{method: npo, beta: 0}", ".beta", "must be above 0, got 0"),
        ("{method: npo, beta: '0.1'}", ".beta", "expected a float, got the text '0.1' (with"),
        ("{method: npo, beta: [0.1, true]}", ".beta.1", "expected a float, got true"),
        ("{method: npo, beta: .nan}", ".beta", "expected a number, got nan"),
        ("{method: npo, beta: {a: 1}}", ".beta", "expected one value or a list of values, got"),
        ("{method: npo, beta: []}", ".beta", "is empty: a sweep of zero runs"),
        ("{method: npo, beta: [1, 1.0]}", ".beta.1", "the same as entry 0: duplicate run"),
        (
            "{method: npo, retain: kll}",
            ".retain",
            "expected one of nll, kl, got the text 'kll'",
        ),
        (
            "{method: npo, retain: {term: nll, wt: 1}}",
            ".retain.wt",
            "unknown key; did you mean 'weight'?",
        ),
        ("{method: npo, retain: {weight: 1.0}}", ".retain.term", "missing: this key is req"),
        ("{method: npo, retain: {term: kl, weight: 0}}", ".retain.weight", "must be above 0"),
        ("{method: npo, retain: []}", ".retain", "is empty: a sweep of zero runs; null is no"),
        ("{method: npo, retain: [kl, kl]}", ".retain.1", "the same retain term again"),
        ("{method: npo, learning_rates: []}", ".learning_rates", "is empty: a sweep of zero"),
        ("{method: npo, learning_rates: [0]}", ".learning_rates.0", "must be above 0, got 0"),
        ("{method: npo, learning_rates: 1.0}", ".learning_rates", "expected a list, got 1.0 (wr"),
        (
            "{method: general-ce-u, forget_score: 2}",
            "",
            "forget_score must lie in [0, 1] unless",
        ),
    ],
)
def test_mistakes_have_key_and_message(load: Load, entry: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"  - {entry}")
    (problem,) = caught.value.problems
    assert (problem.place, problem.key) == ("bench.yaml:5", f"methods.0{key}")
    assert problem.message.startswith(message)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("retain", "nll", "no retain term"),
        ("retain", "[null, kl]", "no retain term"),
        ("learning_rates", "[1.0e-4]", "no learning rates"),
    ],
)
def test_inference_methods_refuse_training_keys(
    load: Load, key: str, value: str, what: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"  - {{method: eco, {key}: {value}}}\n")
    (problem,) = caught.value.problems
    assert problem.key == f"methods.0.{key}"
    assert problem.message.startswith("eco changes the model's input and trains nothing")
    assert what in problem.message
    (grid,) = load("  - {method: eco, sigma: [1, 3.0]}\n")
    assert [spec.hyperparameters["sigma"] for spec in grid.specs] == [1.0, 3.0]


def test_duplicate_runs_of_inference_methods_are_refused(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load("  - {method: eco, sigma: [1.0, 2.0]}\n  - {method: eco, sigma: 2.0}\n")
    (problem,) = caught.value.problems
    assert problem.message == "eco is in methods.0 already: duplicate run"


def test_duplicate_runs_in_two_entries_are_refused(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load("  - ce-u\n  - {method: ce-u, learning_rates: [2.0e-5, 1.0e-5]}")
    (problem,) = caught.value.problems
    assert (problem.place, problem.key) == ("bench.yaml:6", "methods.1")
    assert problem.message == "ce-u at 1e-05 is in methods.0 already: duplicate run"
