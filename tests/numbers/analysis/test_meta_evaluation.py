"""Faithfulness, thresholds and robustness of metrics, on rows whose numbers are known."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.meta_evaluation import (
    AttackedRun,
    MetaEvaluation,
    MetricQuality,
    attacked_runs,
    chosen_variant,
    meta_evaluation,
    smallest_p,
)
from unlearnbench.analysis.results import Results
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.errors import RecordError
from unlearnbench.cli.main import main
from unlearnbench.results.records import EpochResult, Record, write_record
from unlearnbench.results.table import TableRow

from .conftest import GOAL, N, evaluation, off, record, reference, run, table_row

EM, ES, ROUGE = "exact_memorization_forget", "extraction_strength_forget", "rouge_forget"
CLOSENESS, CONTROL = "truth_ratio_forget", "probability_retain"


def row(kind: str, seed: int, metrics: Mapping[str, float | None], **more: Any) -> TableRow:
    method = more.pop("method", kind)
    fields: dict[str, Any] = {"run_id": f"{kind}-{method}-{seed}", "model": f"seed-{seed}", **more}
    return table_row(kind, method, metrics, **fields)


def pools(known: Sequence[Any], unknown: Sequence[Any], column: str = EM) -> list[TableRow]:
    """Start and retain models with these values of one metric."""
    return [
        row(kind, seed, {column: value, "model_utility": 0.6 + seed / 1000})
        for kind, values in (("fine-tuned", known), ("retain", unknown))
        for seed, value in enumerate(values)
    ]


def only(rows: Sequence[TableRow], *attacked: AttackedRun, **how: Any) -> MetaEvaluation:
    (found,) = meta_evaluation(rows, attacked, **how)
    return found


def quality(found: MetaEvaluation, column: str) -> MetricQuality:
    (one,) = (q for q in (*found.metrics, *found.controls) if q.column.name == column)
    return one


def test_faithfulness_is_the_share_of_pairs_in_the_right_order() -> None:
    found = quality(only(pools([0.9, 0.8, 0.4, 0.7], [0.1, 0.5, 0.2])), EM)
    assert found.faithfulness == pytest.approx(11 / 12)
    assert found.low < 11 / 12 < found.high
    assert [found.threshold, found.accuracy] == pytest.approx([0.3, 6 / 7])
    assert (found.known, found.unknown) == ((0.9, 0.8, 0.4, 0.7), (0.1, 0.5, 0.2))


def test_a_metric_that_falls_with_knowledge_is_turned_round() -> None:
    found = quality(only(pools([0.1, 0.2], [0.7, 0.9], CLOSENESS)), CLOSENESS)
    assert found.knows == "lower"
    assert found.faithfulness == 1.0
    assert found.threshold == pytest.approx(0.45), "in the metric's own units"
    assert not found.control


def test_attacks_of_membership_count_although_neither_end_is_wanted() -> None:
    found = quality(only(pools([0.9, 0.8], [0.4, 0.5], "mia_loss")), "mia_loss")
    assert (found.knows, found.faithfulness) == ("higher", 1.0)
    assert quality(only(pools([1, 0], [0, 1], "mia_loss_control")), "mia_loss_control").control


def test_metrics_of_rows_to_keep_are_controls_and_a_warning_where_they_separate() -> None:
    apart = only(pools([0.9, 0.91, 0.92, 0.93], [0.1, 0.11, 0.12, 0.13], CONTROL))
    assert quality(apart, CONTROL).control
    assert any("Probability, retain" in line for line in apart.warnings())
    same = only(pools([0.9, 0.7, 0.5, 0.3], [0.8, 0.6, 0.4, 0.35], CONTROL))
    assert [*same.warnings()] == []


@pytest.mark.parametrize(
    ("known", "unknown", "separates"),
    [
        ([0.9, 0.8, 0.85], [0.1, 0.2, 0.15], False),  # too few to exclude chance
        ([0.9, 0.8, 0.7, 0.6], [0.1, 0.2, 0.3, 0.4], True),
        ([0.9, 0.8, 0.3, 0.1], [0.2, 0.4, 0.5, 0.35], False),
    ],
)
def test_a_metric_separates_beyond_chance(
    known: Sequence[float], unknown: Sequence[float], separates: bool
) -> None:
    found = only(pools(known, unknown))
    assert quality(found, EM).separates is separates
    assert any("by chance" in line for line in found.warnings()) is (len(known) < 4)


def test_smallest_p_value_counts_the_orders() -> None:
    assert [smallest_p(*n) for n in ((1, 1), (3, 3), (3, 4), (4, 4))] == [1, 0.1, 2 / 35, 2 / 70]


def test_one_model_against_one_is_refused() -> None:
    with pytest.raises(RecordError, match=r"at least 2 models .*10 %: 1 and 1: .*preparation.seed"):
        meta_evaluation(pools([0.9], [0.1]))
    with pytest.raises(RecordError, match="no evaluated model"):
        meta_evaluation([])


def test_a_model_that_two_sweeps_have_counts_once() -> None:
    rows = pools([0.9, 0.8], [0.1, 0.2])
    again = [replace(one, run_id=f"other-{one.run_id}") for one in rows]
    found = only([*rows, *again])
    assert (len(found.known), len(found.unknown)) == (2, 2)


def attacked(
    before: float,
    after: float,
    variant: str,
    *,
    retain: tuple[float, float] = (0.1, 0.1),
    **more: Any,
) -> AttackedRun:
    utility = more.pop("utility", 0.6)
    of = row("run", 0, {EM: before, "model_utility": utility}, method=more.pop("method", "npo"))
    numbers = {EM: before}, {EM: after}, {EM: retain[0]}, {EM: retain[1]}
    return AttackedRun(of, 0.6, variant, *numbers)


KNOWN = pools([0.9, 0.8, 0.7, 0.85], [0.1, 0.2, 0.15, 0.05])
"""The threshold is 0.45."""
VARIANTS = {"relearning": "relearning@13", "quantization": "quantization@nf4"}


def test_robustness_is_the_symmetric_form_over_runs_that_have_forgotten() -> None:
    relearned = attacked(0.2, 0.6, "relearning@13", retain=(0.1, 0.2))  # 1 − 0.3 / 0.5
    flat = attacked(0.3, 0.3, "relearning@13", retain=(0.1, 0.1), method="idk")  # 0 / 0
    quantized = attacked(0.2, 0.6, "quantization@nf4")  # 1 − 0.4 / 0.8
    found = quality(only(KNOWN, relearned, flat, quantized, **VARIANTS), EM)
    assert [found.relearning.value, found.relearning.runs] == pytest.approx([(0.4 + 1) / 2, 2])
    assert [found.quantization.value, found.quantization.runs] == pytest.approx([0.5, 1])
    inverse = (1 / 0.7 + 1 / 0.5) / 2
    assert found.robustness == pytest.approx(1 / inverse)
    assert found.overall == pytest.approx(2 / (1 + inverse))


def test_runs_without_utility_and_runs_above_the_threshold_do_not_count() -> None:
    counted = attacked(0.4, 0.4, "quantization@nf4")
    ruined = attacked(0.0, 0.9, "quantization@nf4", utility=0.47)
    knowing = attacked(0.5, 0.9, "quantization@nf4")
    other = attacked(0.1, 0.9, "quantization@int8")
    found = quality(only(KNOWN, counted, ruined, knowing, other, **VARIANTS), EM)
    assert (found.quantization.value, found.quantization.runs) == (1.0, 1)
    alone = quality(only(KNOWN, ruined, **VARIANTS), EM).quantization
    assert (alone.value, alone.runs) == (None, 0)
    assert "no run keeps its utility" in alone.reason


def test_metrics_are_ordered_by_overall_score_and_then_by_faithfulness() -> None:
    def models(kind: str, em: float, es: float, rouge: float) -> list[TableRow]:
        return [
            row(kind, s, {EM: em + s / 99, ES: es + s / 99, ROUGE: rouge * s}) for s in range(4)
        ]

    rows = [*models("fine-tuned", 0.9, 0.5, 0.2), *models("retain", 0.1, 0.49, 0.21)]
    names = [one.column.name for one in only(rows).metrics]
    assert names[:3] == [EM, ES, ROUGE]
    run = attacked(0.2, 0.2, "relearning@13")
    quantized = replace(run, variant="quantization@nf4")
    measured = only(rows, run, quantized, **VARIANTS).metrics
    assert [one.overall for one in measured[:2]] == [1.0, None]
    assert measured[0].column.name == EM
    back = replace(run, after={EM: 0.6}, retain_after={EM: 0.1})
    measured = only(rows, back, quantized, **VARIANTS).metrics
    assert [one.overall for one in measured[:2]] == [0.0, None], "known to be bad, not unknown"


def test_missing_values_are_left_out_and_named() -> None:
    found = quality(only(pools([0.9, 0.8, None], [0.1, None, 0.2])), EM)
    assert (len(found.known), len(found.unknown)) == (2, 2)
    none = only(pools([0.9, 0.8], [None, 0.2]))
    assert dict(none.left_out)["Exact memorization, forget"] == (
        "undefined for most models: 2 and 1 have a value"
    )


RELEARNED, NAME = "relearning@13", "probability_forget"


def forget(values: Any) -> Evaluation:
    """An evaluation with these probabilities of the answers, for the first questions alone."""
    n, whole = len(values), evaluation(GOAL)
    losses, rows = -np.log(np.array(values)), whole.sets["forget"]
    part = {
        name: column[:n]
        for name, column in vars(rows).items()
        if isinstance(column, tuple | np.ndarray)
    }
    seen = replace(rows, **{**part, "answer_loss": losses, "base_loss": losses})
    return replace(whole, sets={"forget": seen})


def relearned(record: Record, epoch: int, value: float, rows: int = 2) -> Record:
    """The record with a result under relearning, on its first rows."""
    result = EpochResult(epoch, {NAME: value}, 0.0, 1.0, RELEARNED)
    under = {(epoch, RELEARNED): forget([value] * rows)}
    results = (*record.attacked, result)
    return replace(
        record, attacked=results, attacked_evaluations={**record.attacked_evaluations, **under}
    )


def known(record: Record, epoch: int, few: float, others: float) -> Record:
    """The record where the first two questions have one probability, and all others another."""
    seen = forget([few] * 2 + [others] * (N - 2))
    return replace(record, evaluations={**record.evaluations, epoch: seen})


RETAIN = known(reference("retain", 0.9, GOAL), 0, 0.1, 0.7)
ALONE = replace(RETAIN, id="retain-under-relearning", epochs=(), evaluations={})
UNDER = relearned(ALONE, 0, 0.2)
START = reference("fine-tuned", 0.9, off(3.0))
RUN = known(known(run("npo", [(0.8, GOAL), (0.7, GOAL)]), 1, 0.5, 0.6), 2, 0.3, 0.6)


def only_run(*records: Record) -> AttackedRun:
    (found,) = attacked_runs(Results.of(records, name=""))
    return found


def test_before_the_attack_counts_the_rows_that_it_is_evaluated_on() -> None:
    found = only_run(relearned(RUN, 2, 0.45), RETAIN, UNDER, START)
    assert found.variant == RELEARNED
    assert (found.row.epoch, found.row.kept, found.kept_at_start) == (2, 0.7, 0.9)
    numbers = (found.before, found.after, found.retain_before, found.retain_after)
    assert [one[NAME] for one in numbers] == pytest.approx([0.3, 0.45, 0.1, 0.2])


def test_a_method_at_inference_time_is_there_before_a_white_box_attack() -> None:
    """Point 0 of the attack is the bare model, which knows everything."""

    def with_first_point(record: Record, value: float) -> Record:
        first = replace(record.attacked[-1], variant="relearning@0", metrics={NAME: value})
        epoch = first.epoch
        under = {(epoch, "relearning@0"): forget([value] * 2), **record.attacked_evaluations}
        return replace(record, attacked=(first, *record.attacked), attacked_evaluations=under)

    trained = with_first_point(relearned(RUN, 2, 0.45), 0.9)
    records = (trained, with_first_point(UNDER, 0.15), RETAIN, START)
    (_, found) = attacked_runs(Results.of(records, name=""))
    assert found.variant == RELEARNED
    assert (found.before[NAME], found.retain_before[NAME]) == pytest.approx((0.9, 0.15))
    bypassed = (replace(trained, learning_rate=None), *records[1:])
    (_, found) = attacked_runs(Results.of(bypassed, name=""))
    assert found.variant == RELEARNED
    assert found.before[NAME] == pytest.approx(0.3), "the method's own number on the same rows"
    assert found.retain_before[NAME] == pytest.approx(0.15)


def test_rows_without_a_question_are_told_apart_by_their_places() -> None:
    """As in MUSE, where texts are continued: the attack asks the last two of them."""

    def as_texts(record: Record) -> Record:
        def without_questions(stored: Evaluation, places: Any = None) -> Evaluation:
            rows = stored.sets["forget"]
            changed = replace(rows, questions=("",) * len(rows.questions), places=places)
            return replace(stored, sets={"forget": changed})

        plain = {epoch: without_questions(stored) for epoch, stored in record.evaluations.items()}
        under = {
            key: without_questions(stored, np.array([N - 2, N - 1]))
            for key, stored in record.attacked_evaluations.items()
        }
        return replace(record, evaluations=plain, attacked_evaluations=under)

    variant = "paraphrase"

    def paraphrased(record: Record) -> Record:
        results = tuple(replace(one, variant=variant) for one in record.attacked)
        under = {
            (epoch, variant): stored for (epoch, _), stored in record.attacked_evaluations.items()
        }
        return replace(record, attacked=results, attacked_evaluations=under)

    records = [
        as_texts(paraphrased(one)) for one in (relearned(RUN, 2, 0.45), RETAIN, UNDER, START)
    ]
    found = only_run(*records)
    numbers = (found.before, found.after, found.retain_before, found.retain_after)
    assert [one[NAME] for one in numbers] == pytest.approx([0.6, 0.45, 0.7, 0.2])


def test_of_several_attacked_epochs_the_last_counts() -> None:
    found = only_run(relearned(relearned(RUN, 1, 0.9), 2, 0.45), RETAIN, UNDER, START)
    assert (found.row.epoch, found.after[NAME]) == (2, 0.45)
    early = only_run(relearned(RUN, 1, 0.9), RETAIN, UNDER, START)
    assert [early.row.epoch, early.before[NAME]] == pytest.approx([1, 0.5])


def test_without_a_retain_model_under_the_attack_its_numbers_are_unknown() -> None:
    found = only_run(relearned(RUN, 2, 0.45), RETAIN, START)
    assert (found.retain_before, found.retain_after) == ({}, {})
    assert attacked_runs(Results.of([RUN, RETAIN, START], name="")) == ()
    failed = replace(relearned(RUN, 2, 0.45), status="failed", error="no memory")
    assert attacked_runs(Results.of([failed, RETAIN, UNDER, START], name="")) == (), "tried again"


def test_nf4_is_the_variant_of_quantization_and_the_last_step_that_of_relearning() -> None:
    variants = ("quantization@nf4", "quantization@fp4", "relearning@1", "relearning@13", "template")
    assert chosen_variant(None, "quantization", variants) == "quantization@nf4"
    assert chosen_variant(None, "relearning", variants) == "relearning@13"
    assert chosen_variant("relearning@1", "relearning", variants) == "relearning@1"
    assert chosen_variant("template", "relearning", variants) == "template"
    assert chosen_variant(None, "relearning", ()) == "relearning"


def test_the_command_prints_every_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, value in (("fine-tuned", 0.9), ("retain", 0.1)):
        for seed in range(2):
            numbers = {EM: value + seed / 10, CONTROL: value * seed}
            made = record(f"{kind}-{seed}", [numbers], kind, model=f"seed-{seed}")
            write_record(made, tmp_path)
    assert main(["analysis", "meta", str(tmp_path), "--json"]) == 0
    (split,) = json.loads(capsys.readouterr().out)["splits"]
    assert split["known"] == ["fine-tuned-0", "fine-tuned-1"]
    metrics = {item["column"]["name"]: item for item in split["metrics"]}
    assert (metrics[EM]["faithfulness"], metrics[EM]["known"]) == (1.0, [0.9, 1.0])
    assert (metrics[EM]["separates"], metrics[CONTROL]["control"]) == (False, True)
    assert "Forgotten" in split["left_out"], "it is relative to models that are judged here"
    assert main(["analysis", "meta", str(tmp_path)]) == 0
    assert "No R: no run was evaluated under relearning." in capsys.readouterr().out
