"""The scorecard: scores, their parts, warnings, and reasons of what is missing."""

from __future__ import annotations

import csv
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scipy import stats

from unlearnbench.api.metric import EvaluatedModel
from unlearnbench.cli.main import main
from unlearnbench.results.records import write_record
from unlearnbench.stats.t_interval import t_interval

from ..conftest import context_of, report_of, with_tokens

if TYPE_CHECKING:
    from unlearnbench.results.records import EpochResult, Record

    from ..conftest import Fabric

scorecard: Any = importlib.import_module("unlearnbench_dashboards.sections.scorecard")
as_text: Any = importlib.import_module("unlearnbench_dashboards.sections.scorecard.as_text")
ONE = ((0.8, -5.0),)
ROWS = 30


def references(fabric: Fabric) -> list[Record]:
    """A start model that knows the answers, and a retain model that does not."""
    return [
        with_tokens(fabric.reference("fine-tuned", rows=ROWS), 0.0, ahead=2.0),
        with_tokens(fabric.reference("retain", rows=ROWS), 0.8, ahead=0.0),
    ]


def scored(records: list[Record]) -> list[Record]:
    """Store the numbers of the records' evaluations, where they are not stored."""
    plan = report_of(records).schema.plan
    models = {
        r.kind: EvaluatedModel(r.evaluations[0].sets, plan.values(r.evaluations[0].sets))
        for r in records
        if r.kind != "run"
    }
    retain, start = models.get("retain"), models.get("fine-tuned")

    def numbers(record: Record, epoch: EpochResult) -> EpochResult:
        found = plan.values(record.evaluations[epoch.epoch].sets, retain, start)
        known = {name: v for name, v in epoch.metrics.items() if v is not None}
        return replace(epoch, metrics={**found, **known})

    return [replace(r, epochs=tuple(numbers(r, e) for e in r.epochs)) for r in records]


def panel(records: list[Record]) -> Any:
    (found,) = scorecard.score_panels(context_of(*records))
    return found


def test_the_ends_of_the_scales(fabric: Fabric) -> None:
    start, retain = references(fabric)
    run = fabric.run(points=ONE, rows=ROWS)
    found = panel(scored([start, retain, replace(run, evaluations={1: retain.evaluations[0]})]))
    forgotten, private, _ = found.lines[0].scores
    assert (forgotten.mean, private.mean) == (1.0, 1.0)
    assert found.references["retain model"][:2] == (1.0, 1.0)
    assert found.references["start model"][0] == pytest.approx(0.0)
    assert found.references["start model"][2] == pytest.approx(1.0)
    assert forgotten.warning == private.warning == ""


def test_parts_stand_beside_start_and_retain_model(fabric: Fabric) -> None:
    run = with_tokens(fabric.run(points=ONE, rows=ROWS), 0.5, ahead=0.0)
    (line,) = panel(scored([*references(fabric), run])).lines
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


def test_an_interval_is_of_the_same_seeds_as_the_number_beside_it(fabric: Fabric) -> None:
    runs = [
        with_tokens(fabric.run(points=ONE, rows=ROWS, seed=seed), level, ahead=ahead)
        for seed, (level, ahead) in enumerate([(0.1, 2.0), (0.9, 0.0), (0.9, 0.0)])
    ]
    records = scored([*references(fabric), *runs])
    (line,) = panel(records).lines
    attack = line.scores[1].parts[0]
    areas = [run.epochs[0].metrics[attack.column.name] or 0.0 for run in records[2:]]
    assert attack.value == pytest.approx(sum(areas) / 3)
    assert max(areas) - min(areas) > 0.1
    assert attack.interval[0] < attack.value < attack.interval[1]
    # One seed has no number: the mean is undefined, and so is its interval.
    without = replace(
        records[2].epochs[0],
        metrics={**records[2].epochs[0].metrics, attack.column.name: None},
    )
    (line,) = panel([*records[:2], replace(records[2], epochs=(without,)), *records[3:]]).lines
    attack = line.scores[1].parts[0]
    assert (attack.value, attack.interval) == (None, None)


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
    assert interval is not None
    assert interval.high > 1
    assert line.scores[0].mean == pytest.approx(interval.mean)
    assert line.scores[0].interval == replace(interval, high=1.0)


@pytest.mark.parametrize(("rows", "is_beyond_chance"), [(3, False), (10, True)])
def test_equal_differences_of_few_questions_are_not_beyond_chance(
    fabric: Fabric, rows: int, is_beyond_chance: bool
) -> None:
    # Every question differs by -1, the bound: n of n. Of 3 of 3 the exact interval begins at 0.29,
    # of 10 of 10 at 0.69, and a mean difference below 0 takes a proportion of more than ½.
    models = [
        with_tokens(fabric.reference("fine-tuned", rows=rows), 0.0),
        with_tokens(fabric.reference("retain", rows=rows), 0.0),
        with_tokens(fabric.run("gradient-ascent", points=ONE, rows=rows), 1.0),
    ]
    (line,) = panel(scored(models)).lines
    assert ("over-forgotten" in line.scores[0].warning) is is_beyond_chance


def test_to_forget_more_than_the_retain_model_is_a_warning(fabric: Fabric) -> None:
    destroyed = with_tokens(fabric.run("gradient-ascent", points=ONE, rows=ROWS), 1.0, ahead=-3.0)
    (line,) = panel(scored([*references(fabric), destroyed])).lines
    forgotten, private, kept = line.scores
    assert forgotten.warning.startswith(
        "over-forgotten: it knows less of the forget rows than the retain model, which never saw "
        "them (extraction strength on the forget set is 0.000, the retain model's is 0."
    )
    assert "look less familiar than rows that no model has seen" in private.warning
    assert "LOSS attack, AUC 0.0" in private.warning
    assert kept.warning == ""


@pytest.mark.parametrize(("distinct", "warns"), [(0.89, True), (0.91, False)])
def test_answers_that_repeat_themselves_are_a_warning(
    fabric: Fabric, distinct: float, warns: bool
) -> None:
    """The start model's answers have a share of 1 of distinct 4-grams."""
    records = scored([*references(fabric), fabric.run(points=ONE, rows=ROWS)])
    *both, run = records
    assert both[0].epochs[0].metrics["repetition_forget"] == 1.0
    numbers = {**run.epochs[0].metrics, "repetition_forget": distinct}
    (line,) = panel([*both, replace(run, epochs=(replace(run.epochs[0], metrics=numbers),))]).lines
    kept = line.scores[2]
    assert ("repetitive" in kept.warnings) == warns
    if warns:
        expected = "repetitive answers: distinct 4-grams, forget 0.890 (start model 1.000)"
        assert kept.warnings["repetitive"] == expected


def test_a_difference_by_chance_is_no_warning(fabric: Fabric) -> None:
    start, retain = references(fabric)
    run = fabric.run(points=ONE, rows=ROWS)
    other = with_tokens(run, 0.8, ahead=0.0)
    (line,) = panel(scored([start, retain, other])).lines
    assert not any(score.warning for score in line.scores)


def kept_of(fabric: Fabric, values: Mapping[str, Sequence[float]]) -> str:
    """The LaTeX of runs that keep `values`, by method and seed."""
    return str(scorecard.scorecard_latex(report_of(kept_records(fabric, values))))


def kept_records(fabric: Fabric, values: Mapping[str, Sequence[float]]) -> list[Record]:
    """A start model, and runs that keep `values`, by method and seed."""
    runs: list[Record] = []
    for method, seeds in values.items():
        for seed, value in enumerate(seeds):
            run = fabric.run(method, points=ONE, seed=seed)
            stored = {**run.epochs[0].metrics, "kept": value}
            runs.append(replace(run, epochs=(replace(run.epochs[0], metrics=stored),)))
    return [fabric.reference("fine-tuned"), *runs]


def bold_of(text: str) -> list[str]:
    """The methods whose last number is bold, and the whole of their cells."""
    lines = [line.removesuffix(" \\\\").split(" & ") for line in text.splitlines()]
    return [name for name, *_, cell in (one for one in lines if len(one) > 1) if "textbf" in cell]


def test_latex_has_what_is_better_than_every_other_beyond_chance_in_bold(fabric: Fabric) -> None:
    close = {"dpo": (0.90, 0.91, 0.92), "npo": (0.80, 0.95, 0.85), "a_b": (0.30, 0.31, 0.32)}
    text = kept_of(fabric, close)
    assert bold_of(text) == [], "npo is above dpo on one seed"
    assert "0.87 [0.68, 1.00]" in text
    assert "\n% Means over seeds 0, 1, 2, or those that a setting has.\n" in text
    assert "\n% Brackets: 95 \\% t interval of the mean" in text
    assert r"\caption{Scores of each method's best setting, tiny, forget 10 \%: 0 to 1" in text
    assert "the highest Forget Quality among settings that keep at least 80 \\%" in text
    assert "Bold: better than every other method's beyond chance" in text
    assert len({line.count("&") for line in text.splitlines() if line.endswith("\\\\")}) == 1
    assert text.isascii()
    # Seeds are paired: npo is better by 0.02 on each, and the intervals of both overlap.
    paired = {"dpo": (0.90, 0.80, 0.85), "npo": (0.92, 0.821, 0.87), "a_b": (0.3, 0.31, 0.32)}
    text = kept_of(fabric, paired)
    assert bold_of(text) == ["npo"]
    assert "\\textbf{0.87} [0.75, 0.99]" in text


class TestTables:
    """`report --table` prints which table, `--format` its format."""

    VALUES: Mapping[str, Sequence[float]] = {"dpo": (0.90, 0.91, 0.92), "npo": (0.80, 0.95, 0.85)}

    @pytest.fixture
    def folder(self, fabric: Fabric, tmp_path: Path) -> Path:
        for number, record in enumerate(kept_records(fabric, self.VALUES)):
            write_record(replace(record, id=f"{number:04x}"), tmp_path)
        return tmp_path

    def printed(self, capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
        capsys.readouterr()
        assert main(["report", str(folder), *words]) == 0
        return capsys.readouterr().out

    def test_scores_are_the_same_in_every_format(self, fabric: Fabric) -> None:
        report = report_of(kept_records(fabric, self.VALUES))
        assert re.search(
            r"\| npo \|.* 0\.87 \[0\.68, 1\.00\]", as_text.scorecard(report, "markdown")
        )
        lines = csv.DictReader(as_text.scorecard(report, "csv").splitlines())
        (line,) = (line for line in lines if line["method"] == "npo")
        mean = (0.80 + 0.95 + 0.85) / 3
        low, high = stats.t.interval(0.95, 2, loc=mean, scale=stats.sem([0.80, 0.95, 0.85]))
        assert high > 1
        assert float(line["kept"]) == pytest.approx(mean)
        assert float(line["kept_low"]) == pytest.approx(low)
        assert float(line["kept_high"]) == 1.0
        assert line["seeds"] == "0 1 2"
        assert as_text.scorecard(report, "latex") == scorecard.scorecard_latex(report)

    def test_earlier_spellings_still_work(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for kind in ("latex", "markdown", "csv"):
            assert self.printed(capsys, folder, "--table", kind) == self.printed(
                capsys, folder, "--table", "best", "--format", kind
            )
        file = folder / "card.tex"
        self.printed(capsys, folder, "--latex", str(file))
        printed = self.printed(capsys, folder, "--table", "scorecard", "--format", "latex")
        assert file.read_text(encoding="utf-8") == printed

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--format", "csv"], "it is the format of a table; name one"),
            (["--table", "csv", "--format", "csv"], "'csv' is a format; name the table"),
        ],
    )
    def test_a_format_without_a_table_is_refused(
        self, folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
    ) -> None:
        assert main(["report", str(folder), *words]) == 2
        assert message in capsys.readouterr().err
