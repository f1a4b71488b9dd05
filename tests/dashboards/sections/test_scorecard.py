"""The scorecard: scores, their parts, warnings, and reasons of what is missing."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.reporting.report import make_report
from unlearnbench.stats.t_interval import t_interval

from ..conftest import with_tokens

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

    from ..conftest import Fabric

latex: Any = importlib.import_module("unlearnbench_dashboards.sections.scorecard.latex")
scorecard: Any = importlib.import_module("unlearnbench_dashboards.sections.scorecard.data")
section: Any = importlib.import_module("unlearnbench_dashboards.report_section")
ONE = ((0.8, -5.0),)
ROWS = 30


def references(fabric: Fabric) -> list[Record]:
    """A start model that knows the answers, and a retain model that does not."""
    return [
        with_tokens(fabric.reference("fine-tuned", rows=ROWS), 0.0, ahead=2.0),
        with_tokens(fabric.reference("retain", rows=ROWS), 0.8, ahead=0.0),
    ]


def panel(records: list[Record]) -> Any:
    (found,) = scorecard.score_panels(section.PageContext.of(make_report(records, name="x")))
    return found


def test_the_questions_are_declared_by_metrics(fabric: Fabric) -> None:
    context = section.PageContext.of(make_report([fabric.run()], name="x"))
    found = scorecard.questions(context.columns.schema)
    assert [one.columns()[0].name for one in found] == ["forgotten", "private", "kept"]
    assert all(one.question.endswith("?") for one in found)


def test_the_ends_of_the_scales(fabric: Fabric) -> None:
    start, retain = references(fabric)
    run = fabric.run(points=ONE, rows=ROWS)
    found = panel([start, retain, replace(run, evaluations={1: retain.evaluations[0]})])
    forgotten, private, _ = found.lines[0].scores
    assert (forgotten.mean, private.mean) == (1.0, 1.0)
    assert found.references["retain model"][:2] == (1.0, 1.0)
    assert found.references["start model"][0] == pytest.approx(0.0)
    assert found.references["start model"][2] == pytest.approx(1.0)
    assert not found.missing
    assert forgotten.warning == private.warning == ""


def test_a_retain_model_that_was_evaluated_first_is_scored_here(fabric: Fabric) -> None:
    start, retain = references(fabric)
    early = {"forgotten": None, "kept": None, "private": 1.0}
    epoch = replace(retain.epochs[0], metrics={**retain.epochs[0].metrics, **early})
    run = with_tokens(fabric.run(points=ONE, rows=ROWS), 0.5, ahead=0.0)
    found = panel([start, replace(retain, epochs=(epoch,)), run])
    assert found.references["retain model"][:2] == (1.0, 1.0)
    assert found.references["retain model"][2] is not None


def test_parts_stand_beside_start_and_retain_model(fabric: Fabric) -> None:
    run = with_tokens(fabric.run(points=ONE, rows=ROWS), 0.5, ahead=0.0)
    (line,) = panel([*references(fabric), run]).lines
    forgotten, private, kept = line.scores
    lead = forgotten.parts[0]
    assert lead.column.label == "Extraction strength, forget"
    assert lead.start == 1.0
    assert lead.retain < lead.value < 1.0
    assert forgotten.parts[-1].column.name == "memorization_score_ou", "a score of the same parts"
    attack = private.parts[0]
    assert attack.interval[0] < attack.value < attack.interval[1]
    assert attack.start > 0.8
    assert [part.column.name for part in kept.parts] == ["model_utility", "repetition_forget"]
    assert kept.parts[0].value == 0.8, "as the run's record has it"
    exported = scorecard.exported([panel([*references(fabric), run])])
    assert exported[0][0][0][0][:2] == [
        "Extraction strength, forget",
        pytest.approx(lead.value, abs=1e-4),
    ]


def test_seeds_have_a_mean_and_its_interval(fabric: Fabric) -> None:
    runs = [fabric.run(points=ONE, seed=seed) for seed in range(3)]
    values = (0.5, 0.6, 0.8)
    stored = [
        replace(
            run,
            epochs=(replace(run.epochs[0], metrics={**run.epochs[0].metrics, "forgotten": value}),),
        )
        for run, value in zip(runs, values, strict=True)
    ]
    (line,) = panel([fabric.reference("fine-tuned"), *stored]).lines
    interval = t_interval(values)
    assert line.scores[0].mean == pytest.approx(interval.mean if interval else None)
    assert line.scores[0].interval == interval


def test_to_forget_more_than_the_retain_model_is_a_warning(fabric: Fabric) -> None:
    destroyed = with_tokens(fabric.run("gradient-ascent", points=ONE, rows=ROWS), 1.0, ahead=-3.0)
    (line,) = panel([*references(fabric), destroyed]).lines
    forgotten, private, kept = line.scores
    assert forgotten.warning.startswith(
        "over-forgotten: extraction strength on the forget set is 0.000, below the retain model's "
    )
    assert "look less familiar than rows that no model has seen" in private.warning
    assert "LOSS attack, AUC 0.0" in private.warning
    assert kept.warning == ""


def test_a_difference_by_chance_is_no_warning(fabric: Fabric) -> None:
    start, retain = references(fabric)
    run = fabric.run(points=ONE, rows=ROWS)
    other = with_tokens(run, 0.8, ahead=0.0)
    (line,) = panel([start, retain, other]).lines
    assert not any(score.warning for score in line.scores)


def test_what_is_missing_has_its_reason(fabric: Fabric) -> None:
    start, retain = fabric.reference("fine-tuned"), fabric.reference("retain")
    early, unseen = panel([start, retain, fabric.run(points=ONE)]).missing
    assert early.startswith("No Forgotten: extraction strength needs the loss of every token, ")
    assert unseen.startswith("No Private: no holdout set was evaluated")
    alone = panel([start, fabric.run(points=ONE)]).missing
    assert alone == (
        "No Forgotten: the retain model was not evaluated.",
        "No Private: the retain model was not evaluated.",
    )
    no_start = panel([retain, fabric.run(points=ONE)])
    assert "No Kept: the start model was not evaluated." in no_start.missing


def test_a_method_without_a_setting_has_no_scores(fabric: Fabric) -> None:
    (line,) = panel([fabric.reference("fine-tuned"), fabric.run(points=((0.1, -1.0),))]).lines
    assert line.scores == ()
    assert "utility" in line.setting.why_not


def test_stored_scores_are_not_computed_again(fabric: Fabric) -> None:
    run = fabric.run(points=ONE)
    context = section.PageContext.of(make_report([fabric.reference("fine-tuned"), run], name="x"))
    names = [one.name for one in context.columns.plan.columns]
    stored = replace(run.epochs[0], metrics={**dict.fromkeys(names, 0.25), **run.epochs[0].metrics})
    (line,) = panel([fabric.reference("fine-tuned"), replace(run, epochs=(stored,))]).lines
    assert [score.mean for score in line.scores] == [0.25] * 3


def kept_of(fabric: Fabric, values: Mapping[str, Sequence[float]]) -> str:
    """The LaTeX of runs that keep `values`, by method and seed."""
    runs: list[Record] = []
    for method, seeds in values.items():
        for seed, value in enumerate(seeds):
            run = fabric.run(method, points=ONE, seed=seed)
            stored = {**run.epochs[0].metrics, "kept": value}
            runs.append(replace(run, epochs=(replace(run.epochs[0], metrics=stored),)))
    text: str = latex.scorecard_latex(
        make_report([fabric.reference("fine-tuned"), *runs], name="x")
    )
    return text


def test_latex_has_the_best_and_what_is_not_told_apart_in_bold(fabric: Fabric) -> None:
    values = {"dpo": (0.90, 0.91, 0.92), "npo": (0.80, 0.95, 0.85), "a_b": (0.30, 0.31, 0.32)}
    text = kept_of(fabric, values)
    head, _, rest = text.partition("\\midrule\n")
    lines = [line.removesuffix(" \\\\").split(" & ") for line in rest.splitlines()[:3]]
    cells = {name.replace("\\_", "_"): cell for name, *_, cell in lines}
    best = max(values, key=lambda name: sum(values[name]))
    of_best = t_interval(values[best])
    assert of_best is not None
    for name, seeds in values.items():
        interval = t_interval(seeds)
        assert interval is not None
        ties = interval.low <= min(1.0, of_best.high) and interval.high >= of_best.low
        assert cells[name].startswith("\\textbf{") == ties, name
        ends = f"[{interval.low:.2f}, {min(1.0, interval.high):.2f}]"
        assert cells[name].endswith(ends)
    assert [name for name in values if cells[name].startswith("\\textbf")] == ["dpo", "npo"]
    assert "Means over seeds 0, 1, 2. Brackets: 95 \\% t interval of the mean" in head
    assert "the highest $\\log_{10}$ Forget Quality of those that keep at least 80\\%" in head
    assert "With" not in head.partition("Bold")[2].partition("Each line")[0]
    assert len({line.count("&") for line in text.splitlines() if line.endswith("\\\\")}) == 1
    assert text.isascii()


def test_latex_of_two_seeds_has_their_range_and_says_so(fabric: Fabric) -> None:
    text = kept_of(fabric, {"dpo": (0.9, 0.92), "npo": (0.8, 0.85)})
    assert "\\textbf{0.91} [0.90, 0.92]" in text
    assert "Brackets: min-max of 2 seeds, which is not an interval of the mean." in text
    assert "With two seeds, a number that is not bold may still be as good." in text
    one = kept_of(fabric, {"dpo": (0.9,), "npo": (0.8,)})
    assert "With one seed, a number that is not bold may still be as good." in one
    assert "Brackets" not in one
