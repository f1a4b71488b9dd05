"""Intervals and tests over the questions of a row, and the sentences on one model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from unlearnbench.analysis.model_text import model_sentences
from unlearnbench.analysis.over_questions import Ends, OverQuestions, percentiles
from unlearnbench.analysis.results import Results
from unlearnbench.api.observations import SETS, Evaluation, FloatArray, SetEvaluation
from unlearnbench.config.entries import benchmark_named
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.benchmark_schema import default_schema
from unlearnbench.results.single import ModelRole, records_of
from unlearnbench.results.table import TableRow
from unlearnbench.stats.mean_interval import mean_interval
from unlearnbench.stats.roc import auc_interval, auc_score_interval, mean_auc_interval

N = 40
BENCHMARK = benchmark_named("tofu")


def answers(probability: FloatArray, ratio: float = 0.3) -> SetEvaluation:
    """A set whose answers have these probabilities, and truth ratios that vary about this one."""
    n = len(probability)
    ones, words = np.ones(n, dtype=np.int64), tuple(f"Who is author {i}?" for i in range(n))
    spread = np.exp(np.random.default_rng(1).normal(0, 0.3, n))
    loss = -np.log(probability)
    base = 5.0 - np.log(ratio * spread)
    return SetEvaluation(
        *(words, words, words, loss, ones, base, ones),
        *(np.full((n, 2), 5.0), np.ones((n, 2), dtype=np.int64), probability, probability),
    )


def model(forget: float, kept: float, ratio: float = 0.3) -> Evaluation:
    """A model with these probabilities of the forget set and of the others, about the mean."""
    noise = np.random.default_rng(0).uniform(-0.05, 0.05, N)
    others = {name: answers(kept + noise, 3.0) for name in SETS if name != "forget"}
    return Evaluation(TOFU.id, {**others, "forget": answers(forget + noise, ratio)})


RETAIN, START = model(0.2, 0.8, 0.9), model(0.9, 0.8, 0.3)


@dataclass(frozen=True)
class Judged:
    """What is said of a model, and its intervals."""

    sentences: tuple[str, ...]
    intervals: Mapping[str, Ends]


def judged(
    subject: Evaluation, retain: Evaluation | None = RETAIN, start: Evaluation | None = START
) -> Judged:
    given = {ModelRole.MODEL: subject, ModelRole.RETAIN: retain, ModelRole.START: start}
    models = {role: {"": one} for role, one in given.items() if one is not None}
    results = Results.of(records_of(models, BENCHMARK, 0.1), name="model")
    rows = {row.kind: row for row in results.rows}
    over_questions = OverQuestions(
        results.schema,
        results.observed,
        retain=rows.get("retain"),
        start=rows.get("fine-tuned"),
    )
    intervals = over_questions.intervals(rows["run"])
    sentences = model_sentences(rows["run"], over_questions, intervals, results.profile)
    return Judged(sentences, intervals)


def test_a_model_like_the_retain_model_is_perhaps_forgotten() -> None:
    forgotten = judged(model(0.2, 0.8, 0.9)).sentences[0]
    assert forgotten.startswith(
        "Forgotten? Perhaps: Forget Quality p = 1 does not distinguish it from the retain model "
        "(D = 0). With 40 forget questions, Forget Quality distinguishes a model"
    )
    assert "only if D is at least 0.325" in forgotten
    # Equal differences leave a share of 1 - 0.025^(1/40) of all questions open.
    assert "difference +0.000 [-0.088, +0.088], no difference beyond chance" in forgotten


def test_the_start_model_is_not_forgotten_and_keeps_everything() -> None:
    forgotten, kept = judged(START).sentences
    assert forgotten.startswith("Forgotten? No: Forget Quality p = ")
    assert "Probability, forget: 0.904, the retain model's 0.204" in forgotten
    # By 0.0881 × 1.7 down to a difference of -1, and by 0.0881 × 0.3 up to one of 1.
    assert "difference +0.700 [+0.550, +0.726], more is memorised than there." in forgotten
    assert "which is 100 % [100, 100 %] of the start model's." in kept


def test_the_kept_share_is_resampled_by_the_same_questions() -> None:
    found = judged(model(0.2, 0.4, 0.9))
    low, high = found.intervals["kept_share"]
    utility = found.intervals["model_utility"]
    assert low < high < 0.9
    assert high - low < (utility[1] - utility[0]) / 0.6, "paired: narrower than either alone"


def test_privacy_is_by_the_attack_that_is_farthest_off() -> None:
    noise = np.random.default_rng(2).uniform(-0.05, 0.05, N)
    unseen = {"holdout": answers(0.2 + noise)}
    start, retain = (replace(one, sets={**one.sets, **unseen}) for one in (START, RETAIN))
    private = judged(start, retain).sentences[1]
    assert private.startswith("Private? No: of all membership attacks ")
    low, high = auc_score_interval(1.0, N, N)  # a bootstrap draws nothing but 1
    assert f"AUC 1.00 [{low:.2f}, {high:.2f}]; the aim is 0." in private
    assert judged(retain, retain).sentences[1].startswith("Private? Perhaps: ")
    assert "½, chance" in judged(start, None).sentences[0]


def test_a_number_that_some_resamples_leave_undefined_has_no_interval() -> None:
    drawn = np.array([0.1, 0.2, np.nan, 0.4])
    assert percentiles(drawn) is None
    assert percentiles(drawn[:2]) is not None


def test_two_questions_show_nothing_beyond_chance() -> None:
    few = {name: answers(np.array([0.9, 0.9])) for name in SETS}
    known = {name: answers(np.array([0.2, 0.2])) for name in SETS}
    verdict = judged(Evaluation(TOFU.id, few), Evaluation(TOFU.id, known), start=None)
    low, high = verdict.intervals["rouge_forget"]
    unseen = 1 - 0.025**0.5
    assert (low, high) == (0.9 - unseen * 0.9, 0.9 + unseen * (1 - 0.9))
    # Resamples of two questions say nothing about others.
    assert "model_utility" not in verdict.intervals
    assert "no difference beyond chance" in verdict.sentences[0]


def over_questions(**models: Evaluation) -> tuple[OverQuestions, Mapping[str, TableRow]]:
    """Intervals and tests of rows `a`, `b` … beside those of a retain and a start model."""
    kinds = {"retain": "retain", "start": "fine-tuned"}
    rows = {
        name: TableRow(
            run_id=name,
            kind=kinds.get(name, "run"),
            model="tiny",
            forget_fraction=0.1,
            method="npo",
            family="npo",
            learning_rate=1e-5,
            seed=0,
            epoch=1,
            status="finished",
            metrics={"mia_loss": 0.5, "mia_reference": 0.5},
        )
        for name in models
    }
    schema = default_schema()
    found = OverQuestions(
        schema,
        lambda row: models[row.run_id],
        retain=rows.get("retain"),
        start=rows.get("start"),
    )
    return found, rows


def test_a_difference_is_of_each_questions_mean_over_seeds() -> None:
    seeds = {"a": model(0.3, 0.8), "b": model(0.5, 0.8)}
    found, rows = over_questions(**seeds, retain=RETAIN)
    difference = found.difference([rows["a"], rows["b"]], "probability_forget")
    assert difference is not None
    losses = [one.sets["forget"].answer_loss for one in (*seeds.values(), RETAIN)]
    a, b, aim = (np.exp(-loss) for loss in losses)
    gaps = (a + b) / 2 - aim
    assert difference.value - difference.retain == pytest.approx(gaps.mean())
    assert difference.interval == mean_interval(gaps, (-1.0, 1.0))
    assert difference.is_above
    # An interval of all seeds needs the observations of all of them.
    missing, rows = over_questions(a=seeds["a"], b=Evaluation(TOFU.id, {}), retain=RETAIN)
    assert missing.difference([rows["a"], rows["b"]], "probability_forget") is None


def test_a_membership_area_has_the_interval_of_all_seeds() -> None:
    noise = np.random.default_rng(2).uniform(-0.05, 0.05, N)
    holdout = {"holdout": answers(0.2 + noise)}
    seeds = [
        replace(one, sets={**one.sets, **holdout}) for one in (model(0.3, 0.8), model(0.2, 0.8))
    ]
    found, rows = over_questions(a=seeds[0], b=seeds[1])
    pairs = [(one.sets["forget"].answer_loss, one.sets["holdout"].answer_loss) for one in seeds]
    assert found.area_interval([*rows.values()], "mia_loss") == mean_auc_interval(pairs)
    assert found.area_interval([rows["a"]], "mia_loss") == auc_interval(*pairs[0])
    assert found.area_interval([rows["a"]], "model_utility") is None


def test_an_attack_by_the_retain_models_losses_has_no_aim() -> None:
    """Its area is ½ for the retain model itself, whatever that model knows."""
    noise = np.random.default_rng(2).uniform(-0.05, 0.05, N)
    unseen = {"holdout": answers(0.2 + noise)}
    one, retain = (replace(of, sets={**of.sets, **unseen}) for of in (START, RETAIN))
    found, rows = over_questions(a=one, retain=retain)
    areas = {"mia_reference": 0.99, "mia_loss": 0.51}
    strongest = found.strongest_attack(replace(rows["a"], metrics=areas))
    assert strongest is not None
    assert (strongest.column, strongest.aim) == ("mia_loss", 0.5)
    alone, rows = over_questions(a=one)
    strongest = alone.strongest_attack(replace(rows["a"], metrics=areas))
    assert strongest is not None
    assert strongest.column == "mia_reference", "as a log may state it"


def test_a_metric_of_one_set_that_is_the_headlines_keeps_its_interval() -> None:
    """Of fewer questions than are drawn again, it is that of a mean."""
    few = {name: answers(np.array([0.9, 0.8, 0.7])) for name in SETS}
    _, rows = over_questions(a=Evaluation(TOFU.id, few))
    headline = default_schema().headline
    kept = replace(headline.kept, column="probability_retain")
    schema = replace(default_schema(), headline=replace(headline, kept=kept))
    found = OverQuestions(schema, lambda _: Evaluation(TOFU.id, few), retain=None, start=None)
    losses = few["retain"].answer_loss
    assert found.intervals(rows["a"])["probability_retain"] == mean_interval(
        np.exp(-losses), (0.0, 1.0)
    )
