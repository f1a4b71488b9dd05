"""Each entry of a search has its own trials and its own choice, also if entries share a method."""

import json
import math
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.factories.marks import diagonals_in_make_test
from unlearnbench.analysis.named_contender import find_contender
from unlearnbench.analysis.results import Results
from unlearnbench.config.entry_labels import entry_labels
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import Scheduler
from unlearnbench.results.records import EpochResult, Record, write_record
from unlearnbench.sweep.follow_up_runs import FollowUpRuns, stages_of
from unlearnbench.sweep.halving import HalvingByGroup, moments_of_halving

from .test_follow_up_runs import a_record, drained, searching

TWO = "[{method: npo, beta: 0.1}, {method: npo, beta: 0.5}]"
RATES = "{low: 1.0e-6, high: 1.0e-3, log: true}"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def a_config(methods: str, *more: str, rates: str = RATES, epochs: int = 1) -> SweepConfig:
    """A configuration with these entries."""
    lines = [
        "name: small",
        "models: [{name: tiny, base: tiny}]",
        "forget_fractions: [0.1]",
        f"methods: {methods}",
        f"learning_rates: {rates}",
        f"epochs: {epochs}",
        "seeds: [0, 1]",
        *more,
    ]
    Path("small.yaml").write_text("\n".join(lines), encoding="utf-8")
    return load_config("small.yaml")


def worth_of(run: RunSpec) -> float:
    """A number of what is forgotten that depends on the setting only, and differs for each."""
    return -10.0 + 5 * random.Random(repr((run.method, run.learning_rate))).random()


def start_model(run: RunSpec) -> Record:
    """The model that runs begin from."""
    epochs = (EpochResult(0, {"model_utility": 0.5, "log10_forget_quality": -12.0}, 0.0, 0.0),)
    record = a_record(run, points=())
    return replace(record, id="start", kind="fine-tuned", method="fine-tuned", epochs=epochs)


def finish(runs: Sequence[RunSpec], folder: Path) -> None:
    """Write records of runs, and of the start model."""
    write_record(start_model(runs[0]), folder)
    for run in runs:
        write_record(a_record(run, points=((0.5, worth_of(run)),)), folder)


def selection(config: SweepConfig, folder: Path) -> list[Mapping[str, Any]]:
    """Run everything, choose, and run the chosen settings on the other seeds."""
    follow_up, search = searching(config, folder)
    finish(drained(search, 1000), folder)
    follow_up = FollowUpRuns(follow_up.current_plan(), folder)
    follow_up.select()
    plan = follow_up.current_plan()
    finish(plan.runs, folder)
    (folder / "plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8")
    chosen = Results.read(folder).selection
    assert chosen is not None
    (folder / "selection.json").write_text(json.dumps(chosen), encoding="utf-8")
    choices: list[Mapping[str, Any]] = chosen["choices"]
    return choices


SEARCHES = {
    "tune": "tune: {trials: 3}",
    "random": "search: {kind: random, trials: 3}\nselect: {seeds: [0]}",
    "quasi-random": "search: {kind: quasi-random, trials: 3}\nselect: {seeds: [0]}",
    "optuna": "search: {kind: optuna, trials: 3}\nselect: {seeds: [0]}",
}


@pytest.mark.parametrize("kind", SEARCHES)
def test_each_entry_has_its_trials_and_its_choice(kind: str, tmp_path: Path) -> None:
    """Two entries of npo, whose trials were six of one method."""
    config = a_config(TWO, SEARCHES[kind])
    first, second = selection(config, tmp_path)
    stored = json.loads((tmp_path / "selection.json").read_text(encoding="utf-8"))
    assert stored["rule"].startswith("per model, split and entry: ")
    assert (first["entry"], second["entry"]) == ("npo (beta=0.1)", "npo (beta=0.5)")
    for choice, beta in ((first, 0.1), (second, 0.5)):
        assert choice["method"] == "npo"
        assert choice["candidates"] == choice["tuning"]["trials"] == 3
        assert len(choice["tuning"]["best_of"]) == 3
        assert choice["hyperparameters"]["beta"] == beta
        assert choice["tuning"]["edges"].keys() == {"learning_rate"}
        assert choice["reported"]["seeds"] == [1]
        assert (choice["untuned"] is not None) is (kind in ("tune", "quasi-random"))
        trials = [
            run
            for run in FollowUpRuns(make_plan(config, "data"), tmp_path).current_plan().runs
            if run.method.hyperparameters["beta"] == beta
        ]
        assert len(trials) == 3
        assert choice["log10_forget_quality"] == max(map(worth_of, trials))


@pytest.mark.parametrize(("kind", "seed"), diagonals_in_make_test(2, SEARCHES, range(6)))
def test_random_entries_are_never_pooled(kind: str, seed: int, tmp_path: Path) -> None:
    """Also if the range of one entry contains the values of another."""
    rng = random.Random(f"{kind} {seed}")
    betas: list[Any] = [0.1, 0.5, [0.1, 0.3], {"low": 0.05, "high": 1.0, "log": True}]
    betas.append({"low": 0.1, "high": 0.7, "step": 0.2})
    methods = [{"method": "npo", "beta": beta} for beta in rng.sample(betas, rng.randint(2, 4))]
    if rng.random() < 0.5:
        methods.append({"method": "npo", "beta": 0.1, "retain": "nll"})
    config = a_config(json.dumps(methods), SEARCHES[kind])
    choices = selection(config, tmp_path)
    assert len({choice["entry"] for choice in choices}) == len(choices) == len(methods)
    assert {choice["tuning"]["trials"] for choice in choices} == {3}
    assert {choice["candidates"] for choice in choices} == {3}
    second = stages_of(make_plan(config, "data"))[1]
    assert second.runs == len(methods) * (2 if kind in ("tune", "quasi-random") else 1)


def test_a_grid_has_one_choice_of_a_method(tmp_path: Path) -> None:
    """Its entries are only another way to write a list, and have no number of trials."""
    config = a_config(TWO, "select: {seeds: [0]}", rates="[1.0e-5, 1.0e-4]")
    (choice,) = selection(config, tmp_path)
    assert (choice["method"], choice["entry"], choice["candidates"]) == ("npo", "npo", 4)
    assert stages_of(make_plan(config, "data"))[1].runs == 1


def test_an_entry_with_several_retain_terms_has_its_edges(tmp_path: Path) -> None:
    """Also the terms behind the first."""
    config = a_config("[{method: ce-u, retain: [nll, kl]}]", "tune: {trials: 6}")
    choices = selection(config, tmp_path)
    assert [choice["entry"] for choice in choices] == ["ce-u+kl", "ce-u+nll"]
    for choice in choices:
        assert choice["tuning"]["edges"].keys() == {"learning_rate", "retain.weight"}


@pytest.mark.parametrize(
    ("methods", "names"),
    [
        (TWO, ["npo (beta=0.1)", "npo (beta=0.5)"]),
        ("[npo, {method: npo, retain: nll}]", ["npo", "npo+nll"]),
        ("[npo, npo]", ["npo (entry 1)", "npo (entry 2)"]),
        (
            "[{method: npo, beta: [0.1, 0.5]}, {method: npo, beta: {low: 0.1, high: 0.5}}]",
            ["npo (beta=0.1 or 0.5)", "npo (beta=0.1 to 0.5)"],
        ),
        (
            "[{method: npo, learning_rates: [1.0e-5]}, npo]",
            ["npo (learning_rate=1e-05)", "npo (entry 2)"],
        ),
        (
            "[{method: npo, retain: nll}, {method: npo, retain: {term: nll, weight: 2.0}}]",
            ["npo+nll (retain.weight=1)", "npo+nll (retain.weight=2)"],
        ),
        (
            "[{method: npo, modifiers: [{sam: {rho: 0.1}}]}, {method: npo, modifiers: [sam]}]",
            ["npo+sam (sam.rho=0.1)", "npo+sam (sam.rho=0.01)"],
        ),
    ],
)
def test_names_tell_entries_apart(methods: str, names: Sequence[str]) -> None:
    config = a_config(methods, "search: {kind: random, trials: 2}")
    found = [name for of_entry in entry_labels(config.methods) for name in of_entry.values()]
    assert found == names


def test_halving_compares_the_runs_of_one_entry(tmp_path: Path) -> None:
    """A rate is not stopped because another entry of the method is better."""
    scheduler = "{metric: model_utility, grace: 1}"
    search = f"search: {{kind: random, trials: 3, scheduler: {scheduler}}}"
    config = a_config(TWO, search, epochs=4)
    plan = make_plan(config, "data")
    finish(plan.runs, tmp_path)
    follow_up = FollowUpRuns(plan, tmp_path)
    settings = Scheduler(metric="model_utility")
    moments = moments_of_halving(config)
    by_entry = HalvingByGroup(settings, moments, {}, tmp_path, follow_up.entry_of)
    assert {group.entry for group in by_entry.groups} == {"npo (beta=0.1)", "npo (beta=0.5)"}
    by_method = HalvingByGroup(settings, moments, {}, tmp_path, lambda _: "")
    assert [group.method for group in by_method.groups] == ["npo"]


def test_compare_takes_the_better_choice_of_a_method(tmp_path: Path) -> None:
    """And corrects for the trials of both entries."""
    choices = selection(a_config(TWO, SEARCHES["random"]), tmp_path)
    results = Results.read(tmp_path)
    side = find_contender("npo", "npo", results)
    best = max(choices, key=lambda choice: float(choice["log10_forget_quality"]))
    choice = side.choice(("tiny", 0.1))
    assert choice is not None
    assert choice.name == best["entry"]
    (setting,) = side.settings(("tiny", 0.1))
    assert side.pool(setting).tried == 6
    one = find_contender(f"npo ({best['setting'].partition('(')[2]}", "one", results)
    assert one.pool(one.settings(("tiny", 0.1))[0]).tried == 3


def planned(config: SweepConfig, folder: Path) -> dict[str, Any]:
    """The plan as it is stored now."""
    follow_up = FollowUpRuns(make_plan(config, "data"), folder)
    return follow_up.current_plan().to_json()


def test_the_plan_says_why_each_run_is_there(tmp_path: Path) -> None:
    """Where its setting is in the ranges of an entry, or which trials it reports."""
    config = a_config(TWO, SEARCHES["tune"])
    runs = planned(config, tmp_path)["runs"]
    assert len(runs) == 6
    first, *others = runs
    (entry,) = first["trial"]["entries"].items()
    share = math.log(first["spec"]["learning_rate"] / 1e-6) / math.log(1e-3 / 1e-6)
    assert entry == (
        "npo (beta=0.1)",
        {"position": {"learning_rate": pytest.approx(share)}, "untuned": True},
    )
    untuned = [run["trial"]["entries"] for run in others if "untuned" in str(run["trial"])]
    assert len(untuned) == 1, "of the other entry"
    selection(config, tmp_path)
    runs = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["runs"]
    trials = {run["id"]: run for run in runs if "entries" in run["trial"]}
    reporting = [run for run in runs if "reports" in run["trial"]]
    assert len(trials) + len(reporting) == len(runs)
    for run in reporting:
        assert run["spec"]["seed"] == 1
        for id_ in run["trial"]["reports"]:
            assert trials[id_]["spec"] == run["spec"] | {"seed": 0}


def test_a_grid_and_requests_in_sequence_have_the_method_as_their_entry(tmp_path: Path) -> None:
    config = a_config("[npo, {method: ce-u, retain: nll}]", rates="[1.0e-5]")
    sequence = config.model_copy(
        update={"requests": "in-sequence", "forget_fractions": (0.05, 0.1), "epochs_as": "runs"}
    )
    for one in (config, sequence):
        for run in planned(one, tmp_path)["runs"]:
            method = run["spec"]["method"]
            label = method["name"] if method["retain"] is None else f"{method['name']}+nll"
            assert run["trial"] == {"entries": {label: {}}}


def test_the_plan_counts_settings_that_a_search_may_still_suggest(tmp_path: Path) -> None:
    """So that nothing is chosen from a part of the trials."""
    config = a_config(TWO, SEARCHES["optuna"])
    follow_up, search = searching(config, tmp_path)
    runs = drained(search, 2)
    plan = follow_up.current_plan()
    assert plan.to_json()["unknown_runs"] == plan.unknown_runs == 6 - len(plan.runs)
    finish(runs, tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8")
    results = Results.read(tmp_path)
    assert results.selection is None
    (best,) = results.panels[0].best
    assert best.why_not == f"nothing is chosen yet: {plan.unknown_runs} trials have not ended"
    selection(config, tmp_path)
    assert "unknown_runs" not in json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))


def test_defaults_that_keep_too_little_are_reported_as_they_end(tmp_path: Path) -> None:
    """With a run for each number of epochs, that is the longest of them."""
    config = a_config("[npo]", SEARCHES["tune"], "epochs_as: runs", epochs=3)
    plan = make_plan(config, "data")
    write_record(start_model(plan.runs[0]), tmp_path)

    def record_of(run: RunSpec) -> Record:
        epochs = (
            EpochResult(
                run.budget,
                {"model_utility": 0.1, "log10_forget_quality": float(-run.budget)},
                0.0,
                0.0,
            ),
        )
        return replace(a_record(run), epochs=epochs)

    for run in plan.runs:
        write_record(record_of(run), tmp_path)
    follow_up = FollowUpRuns(plan, tmp_path)
    follow_up.select()
    for run in follow_up.current_plan().runs:
        write_record(record_of(run), tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(follow_up.current_plan().to_json()))
    chosen = Results.read(tmp_path).selection
    assert chosen is not None
    (choice,) = chosen["choices"]
    assert choice["why_not"]
    assert choice["untuned"]["seeds"] == [1]
    assert choice["untuned"]["log10_forget_quality"]["mean"] == -3.0


def test_the_next_sweep_runs_a_choice_that_has_moved(tmp_path: Path) -> None:
    """Numbers of the trials have changed since the sweep chose."""
    config = a_config("[npo]", "select: {seeds: [0]}", rates="[1.0e-5, 1.0e-4]")
    plan = make_plan(config, "data")
    finish(plan.runs, tmp_path)
    follow_up = FollowUpRuns(plan, tmp_path)
    follow_up.select()
    (reporting,) = follow_up.current_plan().runs[2:]
    finish([reporting], tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(follow_up.current_plan().to_json()))
    assert Results.read(tmp_path).panels[0].best[0].setting is not None
    (other,) = (run for run in plan.runs if run.learning_rate != reporting.learning_rate)
    shutil.rmtree(tmp_path / "records" / other.id)
    write_record(a_record(other, points=((0.5, -0.5),)), tmp_path)
    results = Results.read(tmp_path)
    assert results.panels[0].best[0].setting is None
    assert any("has moved to npo, epoch 1" in line for line in results.warnings)
    again = FollowUpRuns(plan, tmp_path)
    again.select()
    (new,) = again.current_plan().runs[2:]
    assert (new.learning_rate, new.seed) == (other.learning_rate, 1)
