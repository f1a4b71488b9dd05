"""The best setting of each method, chosen on some seeds and reported on the others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from unlearnbench.analysis.choice_plan import ChoicePlan
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.selection import report_chosen
from unlearnbench.analysis.selection_rule import RULES, choose
from unlearnbench.base.errors import RecordError
from unlearnbench.config.search import RuleName, SelectSettings
from unlearnbench.report.best_table import best_table
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow

from .conftest import choice_plan, choosing, pointed, table_row

Point = tuple[float | None, float | None]


def row(method: str, rate: float, seed: int, epoch: int, point: Point, **more: Any) -> TableRow:
    metrics: dict[str, Any] = dict(
        zip(("model_utility", "log10_forget_quality"), point, strict=True)
    )
    place: dict[str, Any] = {"learning_rate": rate, "seed": seed, "epoch": epoch}
    fields = {"run_id": f"{method}-{rate:g}-{seed}", **place, **more}
    return table_row(fields.pop("kind", "run"), method, metrics, **fields)


START = row("fine-tuned", 0.0, 0, 0, (0.5, -10.0), kind="fine-tuned", learning_rate=None)
FIRST = SelectSettings(utility=0.8, seeds=(0,))


def chosen(rows: list[TableRow], select: SelectSettings = FIRST) -> tuple[Any, ...]:
    (found,) = choose(rows, select)
    return found.learning_rate, found.epoch, found.forgotten


def test_highest_forget_quality_with_enough_utility() -> None:
    rows = [
        START,
        row("npo", 1e-5, 0, 1, (0.50, -9.0)),
        row("npo", 1e-5, 0, 2, (0.45, -6.0)),
        row("npo", 1e-4, 0, 1, (0.40, -5.0)),  # exactly 0.8 of 0.5
        row("npo", 1e-4, 0, 2, (0.39, -1.0)),  # forgets most, and keeps too little
    ]
    assert chosen(rows) == (1e-4, 1, -5.0)
    assert chosen(rows, SelectSettings(utility=0.9)) == (1e-5, 2, -6.0)
    (none,) = choose(rows, SelectSettings(utility=1.0))
    assert (none.learning_rate, none.epoch) == (1e-5, 1)
    poor = [START, row("npo", 1e-4, 0, 1, (0.3, -1.0))]
    (none,) = choose(poor, FIRST)
    assert none.epoch is None
    assert none.why_not == "no setting keeps at least 80 % of the start model's utility, 0.5"


def test_the_other_seeds_have_no_part_in_the_choice() -> None:
    rows = [
        START,
        row("npo", 1e-5, 0, 1, (0.5, -5.0)),
        row("npo", 1e-4, 0, 1, (0.5, -6.0)),
        row("npo", 1e-4, 1, 1, (0.5, 0.0)),
        row("npo", 1e-4, 2, 1, (0.5, 0.0)),
    ]
    assert chosen(rows) == (1e-5, 1, -5.0)
    assert chosen(rows, SelectSettings(seeds=(0, 1))) == (1e-4, 1, -3.0), "1e-5 lacks seed 1"


def test_a_collapsed_seed_is_no_candidate() -> None:
    rows = [
        START,
        row("npo", 1e-5, 0, 1, (0.5, -5.0)),
        row("npo", 1e-4, 0, 1, (None, -1.0)),
    ]
    assert chosen(rows) == (1e-5, 1, -5.0)
    (found,) = choose(rows, FIRST)
    assert found.candidates == 1
    (lost,) = choose([START, rows[2]], FIRST)
    assert lost.why_not == "no setting has numbers for all seeds of the choice"


def test_the_setting_that_spans_most() -> None:
    rows = [
        START,
        row("npo", 1e-5, 0, 1, (0.5, -8.0)),
        row("npo", 1e-5, 0, 2, (0.4, -6.0)),  # with the epoch before 0.5 · 2 + 0.4 · 2 = 1.8
        row("npo", 1e-4, 0, 1, (0.4, -5.75)),  # 0.4 · 4.25 = 1.7, more than either alone
    ]
    select = SelectSettings(rule="hypervolume")
    (found,) = choose(rows, select)
    assert (found.learning_rate, found.epoch, found.runs) == (1e-5, 2, ("npo-1e-05-0",))
    assert found.hypervolume == pytest.approx(1.8)
    higher = SelectSettings(rule="hypervolume", reference=(0.3, -10.0))
    # 0.2 · 2 + 0.1 · 2 = 0.6 against 0.1 · 4.25; alone the first epoch spans 0.4, the second 0.4.
    (found,) = choose(rows, higher)
    assert found.hypervolume == pytest.approx(0.6)
    nothing = SelectSettings(rule="hypervolume", reference=(0.6, -10.0))
    assert choose(rows, nothing)[0].why_not == "no setting is above (0.6, -10) in both"
    assert "give select.reference" in choose(rows[1:], select)[0].why_not


def test_reported_on_the_other_seeds_at_the_chosen_epoch() -> None:
    rows = [
        START,
        row("npo", 1e-5, 0, 1, (0.5, -5.0)),
        row("npo", 1e-5, 1, 1, (0.4, -6.0)),
        row("npo", 1e-5, 2, 1, (0.3, -8.0)),
        row("npo", 1e-5, 1, 2, (0.1, -1.0)),
    ]
    (choice,) = choose(rows, FIRST)
    followed = ["npo-1e-05-1", "npo-1e-05-2"]

    def reported(rows: list[TableRow]) -> tuple[Any, ...]:
        found = report_chosen(choice, rows, followed)["reported"]
        numbers = (found["model_utility"], found["log10_forget_quality"])
        return (found["seeds"], *(tuple(one.values()) for one in numbers))

    seeds, utility, quality = reported(rows)
    assert seeds == [1, 2]
    assert utility == pytest.approx((0.35, 0.005**0.5))
    assert quality == pytest.approx((-7.0, 2**0.5))
    assert reported(rows[:3]) == ([1], (0.4, None), (-6.0, None)), "one seed has no spread"
    assert reported(rows[:2]) == ([], (None, None), (None, None))
    fallen = [*rows[:3], row("npo", 1e-5, 2, 1, (None, -8.0))]
    assert reported(fallen)[1] == (None, None), "collapse is not averaged away"


def test_each_rule_is_a_class_and_a_value_of_select_and_explained() -> None:
    assert {*RULES} == {*get_args(RuleName)}, "RuleName is in config/search.py"
    keys = {key for rule in RULES.values() for key in rule.keys}
    assert keys | {"rule", "seeds"} == {*SelectSettings.model_fields}
    described = SelectSettings.model_fields["rule"].description or ""
    for name in RULES:
        assert f"{name}: " in described, "the schema explains each rule"


def test_the_tutorial_explains_each_rule_with_its_keys() -> None:
    page = Path(__file__).parents[3] / "docs" / "tutorials" / "tune-fairly.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    for name, rule in RULES.items():
        (line,) = [line for line in lines if line.startswith(f"| `{name}`")]
        assert all(f"`{key}`" in line for key in rule.keys)


# Plans of versions that did not say why their runs are there


def legacy_sweep() -> list[Record]:
    """Two entries of npo, of which each has two trials; the second trial of each is the best."""
    records = [pointed("start", ((0.5, -12.0),), kind="fine-tuned")]
    for number, (rate, quality) in enumerate([(1e-5, -9.0), (2e-5, -5.0), (3e-5, -8.0)]):
        for seed in range(3):
            drop = 0.5 * seed
            name = f"{number}-{seed}"
            records.append(pointed(name, ((0.5, quality - drop),), rate=rate, seed=seed))
    return records


def results_of(
    records: Sequence[Record], stored: Mapping[str, Any] | None, *, is_searched: bool
) -> Results:
    """Results of a folder whose plan has no `trial`."""
    plan = replace(choice_plan(records), is_searched=is_searched)
    return Results.of(records, name="old", choice_plan=plan, stored_selection=stored)


def stored_selection(**changes: Any) -> dict[str, Any]:
    """`selection.json` as an earlier version wrote it: each entry with its own choice."""
    choices: list[dict[str, Any]] = []
    for entry, number, rate in (("npo (entry 1)", 1, 2e-5), ("npo (entry 2)", 2, 3e-5)):
        choices.append(
            {
                "model": "tiny",
                "forget_fraction": 0.1,
                "method": "npo",
                "candidates": 2,
                "why_not": "",
                "setting": "npo",
                "hyperparameters": {},
                "learning_rate": rate,
                "epoch": 1,
                "model_utility": 0.5,
                "log10_forget_quality": -7.0,
                "hypervolume": None,
                "runs": [f"{number}-0"],
                "entry": entry,
                "reported_runs": [f"{number}-1", f"{number}-2"],
                # By another version of the metric.
                "reported": {"seeds": [1, 2], "log10_forget_quality": {"mean": 99.0}},
                "tuning": {"trials": 2, "failed": 0, "best_of": [-7.0, -6.0], "edges": {}},
                "untuned": None,
            }
        )
    return {"schema": 1, "select": FIRST.model_dump(mode="json"), "choices": choices, **changes}


def test_stored_choices_of_entries_are_kept_with_the_numbers_of_the_table() -> None:
    records = legacy_sweep()
    results = results_of(records, stored_selection(), is_searched=True)
    selection = results.selection
    assert selection is not None
    numbers = [choice["reported"]["log10_forget_quality"] for choice in selection["choices"]]
    reported = [number["mean"] for number in numbers]
    assert reported == pytest.approx([-5.75, -8.75])
    (panel,) = results.panels
    assert [best.name for best in panel.best] == ["npo (entry 1)", "npo (entry 2)"]
    assert [best.setting and best.setting.forgotten for best in panel.best] == reported


@pytest.mark.parametrize("kind", ["none", "no rule", "another rule", "other runs"])
def test_without_stored_choices_each_method_has_one(kind: str) -> None:
    records = legacy_sweep()
    stored: dict[str, Any] | None = stored_selection()
    if kind == "none":
        stored = None
    elif kind == "no rule":
        stored = {key: value for key, value in stored_selection().items() if key != "select"}
    elif kind == "another rule":
        stored = stored_selection(select=FIRST.model_dump(mode="json") | {"utility": 0.1})
    else:
        records = [record for record in records if record.id != "1-2"]
    (panel,) = results_of(records, stored, is_searched=True).panels
    (best,) = panel.best
    assert best.name == "npo"
    assert best.setting is not None
    assert best.setting.learning_rate == 2e-5


def test_a_plan_that_says_why_needs_no_stored_choice() -> None:
    """Also a plain grid of an earlier version, whose entries are only a way to write lists."""
    records = legacy_sweep()
    stored = stored_selection()
    (best,) = results_of(records, stored, is_searched=False).panels[0].best
    assert best.name == "npo"
    entries: dict[str, dict[str, dict[str, Any]]] = {
        f"{number}-0": {f"npo (entry {number})": {}} for number in range(3)
    }
    results = choosing(records, entries=entries)
    new = replace(results, stored_selection=stored)
    assert [best.name for best in new.panels[0].best] == [
        f"npo (entry {number})" for number in (1, 2, 0)
    ]


def test_a_damaged_rule_names_the_plan() -> None:
    config = {"select": {"rule": "best"}, "seeds": [0, 1]}
    with pytest.raises(RecordError, match=r"plan\.json: select: .*; start the sweep again"):
        ChoicePlan.read({"config": config, "runs": []})


# Seeds that ended early, in a sweep that chooses nothing


def test_a_method_without_a_mean_says_which_seed_ended() -> None:
    start = pointed("start", ((0.9, -12.0),), kind="fine-tuned")
    whole = pointed("a", ((0.9, -9.0), (0.9, -5.0)))
    lost = replace(pointed("b", ((0.2, -9.0),), seed=1), status="collapsed")
    other = pointed("c", ((0.9, -11.0),) * 2, method="ce-u")
    results = Results.of([start, whole, lost, other], name="")
    (panel,) = results.panels
    best, npo = panel.best
    assert best.name == "ce-u"
    assert npo.setting is None
    assert npo.why_not == (
        "no setting with a mean over its seeds keeps at least 80 % of the start model's utility "
        "(seed 1 collapsed at epoch 1)"
    )
    assert f"npo: {npo.why_not}." in best_table(results)
    (conclusion,) = results.conclusions
    assert f"npo has no place: {npo.why_not}." in conclusion.sure
    alone = Results.of([start, whole, lost], name="")
    assert alone.conclusions[0].found.endswith(
        "Settings whose seeds ended early have no mean: seed 1 collapsed at epoch 1. npo at "
        "learning rate 1e-05, epoch 1, has the highest utility: 0.55."
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"status": "collapsed"}, "seed 1 collapsed at epoch 1"),
        ({"status": "stopped"}, "seed 1 was stopped by the search after epoch 1"),
        ({"ended": "no better"}, "seed 1 ran out of patience after epoch 1"),
        ({"status": "failed"}, ""),
        ({}, ""),
    ],
)
def test_what_ends_a_mean(changes: Mapping[str, Any], text: str) -> None:
    """A run that failed, or that has not run yet, says nothing about its setting."""
    whole = pointed("a", ((0.9, -9.0), (0.9, -5.0)))
    short = replace(pointed("b", ((0.9, -9.0),), seed=1), **changes)
    results = Results.of([whole, short], name="")
    first, second = results.panels[0].settings
    assert first.kept == pytest.approx(0.9)
    assert second.why_not == text
    assert second.kept == (None if text else pytest.approx(0.9))
