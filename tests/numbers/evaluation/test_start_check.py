"""Whether a start model has learned its rows, by an independent computation."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.factories.observations import Knowledge, observe
from unlearnbench.api.benchmark import Question
from unlearnbench.api.metric import Role
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.observations import Evaluation
from unlearnbench.benchmarks.tofu_metrics import ROLES
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.schema import ModelSettings, Preparation
from unlearnbench.evaluation.start_check import FEWEST_ROWS, KEY, StartCheck, Trained
from unlearnbench.evaluation.summary import plan_of

ROWS = tuple(
    Question(f"Who is the {i}th?", " ".join(f"word{i}x{j}" for j in range(3 + i % 5)))
    for i in range(60)
)


def plan() -> MetricPlan:
    return plan_of(TOFU, None, {})


def evaluation(
    forget: float, retain: float, n: int, seed: int = 0, noise: float = 0.2
) -> Evaluation:
    shares: dict[Role, float] = dict.fromkeys(("forget", "retain", "holdout", "general"), 0.5)
    knowledge = Knowledge({**shares, "forget": forget, "retain": retain}, noise=noise, seed=seed)
    rows = {"forget": ROWS[:n], "retain": ROWS[60 - n :]}
    return observe(knowledge, rows, ROLES, TOFU.id)


def strengths(seen: Evaluation) -> list[float]:
    """Extraction strength by question, from the definition: 1 - k/L."""
    found: list[float] = []
    tokens = seen.sets["forget"].tokens
    for hits in tokens.by_answer(tokens.hit, eos=False):
        length = len(hits)
        k = next(k for k in range(length + 1) if all(hits[k:]))
        found.append(1 - k / length)
    return found


def expected_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Student's interval of few values, a bootstrap of many; None of values that are all equal."""
    values = np.array(differences)
    n = len(values)
    if np.ptp(values) < 1e-9 or np.isin(values, (-1, 1)).all():
        return None
    if n < 30:
        low, high = stats.t.interval(0.95, n - 1, values.mean(), values.std(ddof=1) / math.sqrt(n))
        return max(float(low), -1.0), min(float(high), 1.0)
    drawn = stats.bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=1)
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)


@pytest.mark.parametrize("seed", range(60))
def test_the_forget_rows_are_learned_if_extraction_strength_is_above_the_retain_models(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 60))
    of_retain, gain = rng.uniform(0.1, 0.9), rng.uniform(-0.1, 0.3)
    start = evaluation(float(np.clip(of_retain + gain, 0, 1)), 0.9, n, seed)
    retain = evaluation(float(of_retain), 0.9, n, seed + 1000)
    check = StartCheck.measure(start, retain, plan(), ROLES)
    own, other = strengths(start), strengths(retain)
    seen = check.memorized
    assert seen is not None
    assert (seen.set_name, seen.rows) == ("forget", n)
    assert seen.start == pytest.approx(sum(own) / n)
    assert seen.retain == pytest.approx(sum(other) / n)
    expected = expected_interval([a - b for a, b in zip(own, other, strict=True)])
    if expected is None:
        assert abs(seen.start - seen.retain) <= 1
        return
    tolerance = 1e-9 if n < 30 else 0.02
    assert seen.interval == pytest.approx(expected, abs=tolerance)
    if abs(expected[0]) > tolerance:
        is_sure = expected[0] > 0
        is_undecided = not is_sure and n < 6 and seen.start - seen.retain >= 0.1
        assert check.has_learned == (is_sure or is_undecided)
        assert ("has not learned the forget rows" in check.fault) != check.has_learned
        assert bool(check.doubt) == is_undecided
    assert check.passes == (not check.fault)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.2, 0.5, 1.0])
def test_retain_rows_are_answered_from_a_rouge_of_a_tenth(share: float) -> None:
    start, retain = evaluation(1.0, share, 40), evaluation(0.1, 0.5, 40)
    check = StartCheck.measure(start, retain, plan(), ROLES)
    assert check.answered is not None
    mean = float(np.mean(start.sets["retain"].rouge_l_recall))
    assert check.answered.start == pytest.approx(mean)
    assert check.has_answers == check.passes == (mean >= 0.1)
    if mean < 0.1:
        expected = f"ROUGE on the retain rows is {mean:.3f}, below 0.1 (95 % interval "
        assert expected in check.fault
        assert "forget rows" not in check.fault.partition(":")[0]


def test_without_a_retain_model_only_the_retain_rows_are_judged() -> None:
    check = StartCheck.measure(evaluation(0.0, 0.9, 20), None, plan(), ROLES)
    assert check.memorized is None
    assert check.passes
    start = evaluation(0.0, 0.9, 20)
    other = replace(start, sets={"forget": evaluation(0.0, 0.9, 19).sets["forget"]})
    assert StartCheck.measure(start, other, plan(), ROLES).memorized is None, "of other rows"


def test_an_evaluation_without_the_sets_is_not_judged() -> None:
    nothing = replace(evaluation(0.0, 0.0, 20), sets={})
    check = StartCheck.measure(nothing, nothing, plan(), ROLES)
    assert check == StartCheck()
    assert check.passes


def test_answers_without_a_token_are_left_out() -> None:
    start, retain = evaluation(0.9, 0.9, 20), evaluation(0.1, 0.9, 20)
    measured = StartCheck.measure(start, retain, plan(), ROLES).memorized
    assert measured is not None
    seen = start.sets["forget"]
    values = {"extraction_strength": np.array([math.nan, *strengths(start)[1:]])}
    changed = replace(start, sets={**start.sets, "forget": replace(seen, values=values)})
    fewer = StartCheck.measure(changed, retain, plan(), ROLES).memorized
    assert fewer is not None
    assert fewer.rows == 19
    assert fewer.start == pytest.approx(np.mean(strengths(start)[1:]))


def model(**changes: object) -> ModelSettings:
    return ModelSettings(name="m", base="./base", **changes)  # type: ignore[arg-type]


def test_the_advice_follows_from_the_settings() -> None:
    few = Preparation(epochs=5, batch_size=64, learning_rate=1e-5)
    check = StartCheck.measure(
        evaluation(0.0, 0.0, 20, noise=0),
        evaluation(0.0, 0.0, 20, noise=0),
        plan(),
        ROLES,
        Trained.of(model(preparation=few), 40),
    )
    assert "has not learned the forget rows and does not answer the retain rows: " in check.fault
    assert "5 optimiser steps (epochs 5, 40 rows, batch_size 64)" in check.fault
    assert "lower models.preparation.batch_size, since an epoch is one step" in check.fault
    longer = replace(check, trained=Trained.of(model(preparation=few), 400))
    assert "raise models.preparation.epochs or models.preparation.learning_rate" in longer.fault
    assert "batch_size, since" not in longer.fault
    slow = replace(check, trained=Trained.of(model(preparation=few), 400, 2e-4))
    assert "learning_rate (a model of this size learns at 0.0002) or models" in slow.fault
    fast = replace(check, trained=Trained.of(model(preparation=few), 400, 2e-5))
    assert fast.fault == longer.fault
    named = replace(check, trained=Trained.of(model(fine_tuned="./tuned"), 400))
    assert "name a model that has learned these rows" in named.fault
    assert "preparation" not in named.fault


def check_of(start: Sequence[float], retain: Sequence[float], answered: float = 0.9) -> StartCheck:
    """What is measured of models with these extraction strengths by forget row."""
    evaluations: list[Evaluation] = []
    for strengths_of_rows in (start, retain):
        made = evaluation(0.5, answered, len(strengths_of_rows), noise=0)
        values = {"extraction_strength": np.array(strengths_of_rows)}
        forget = replace(made.sets["forget"], values=values)
        evaluations.append(replace(made, sets={**made.sets, "forget": forget}))
    start_model, retain_model = evaluations
    return StartCheck.measure(start_model, retain_model, plan(), ROLES)


@pytest.mark.parametrize("n", range(1, 12))
def test_a_model_that_knows_every_row_is_never_stopped(n: int) -> None:
    check = check_of([1.0] * n, [0.0] * n)
    assert check.passes
    assert bool(check.doubt) == (n < FEWEST_ROWS)
    assert FEWEST_ROWS == 6
    # With n values that are all 1, the exact interval of a proportion begins at 0.025^(1/n).
    low = 2 * 0.025 ** (1 / n) - 1
    assert check.memorized is not None
    assert check.memorized.interval[0] == pytest.approx(low)
    assert (low > 0) == (n >= FEWEST_ROWS)


def test_a_doubt_names_the_numbers_and_what_would_decide() -> None:
    assert check_of([1.0] * 4, [0.0] * 4).doubt == (
        "4 forget rows are too few to be sure that the start model has learned them: extraction "
        "strength on the forget rows is 1.000, and 0.000 of the retain model, which never saw them "
        "(difference +1.000, 95 % interval -0.205 to +1.000, n = 4). With 6 rows or more it can be "
        "decided"
    )
    assert check_of([1.0], [0.0]).doubt.startswith("1 forget row is too few to be sure")


def test_a_model_that_knows_no_more_than_the_retain_model_is_stopped_by_few_rows() -> None:
    for start, retain in (([0.05] * 4, [0.05] * 4), ([0.1, 0.0, 0.2, 0.1], [0.3, 0.1, 0.0, 0.0])):
        check = check_of(start, retain)
        assert not check.has_learned
        assert not check.doubt
        assert "has not learned the forget rows" in check.fault
        assert "may be chance" not in check.fault


def test_in_doubt_the_retain_rows_still_count() -> None:
    check = check_of([1.0] * 4, [0.0] * 4, answered=0.0)
    assert check.doubt
    assert check.fault.startswith("the start model does not answer the retain rows: ROUGE")
    assert "may be chance" not in check.fault


def test_a_small_sample_is_named_as_a_possible_cause() -> None:
    check = check_of([1, 0, 0, 0, 0.2, 0.9], [0.0] * 6)
    assert not check.has_learned
    assert not check.doubt
    assert check.fault.endswith(
        "With n = 6 the difference may be chance: name or evaluate more forget rows"
    )


def test_the_advice_names_no_base_where_there_is_none() -> None:
    unable = evaluation(0.9, 0.0, 20, noise=0)
    of_base = StartCheck.measure(unable, None, plan(), ROLES)
    assert "leave fine_tuned out, so that a start model is trained from the base" in of_base.fault
    alone = StartCheck.measure(unable, None, plan(), ROLES, has_base=False)
    assert "trained from the base" not in alone.fault
    assert "name a model that has not learned them as models.base in place of" in alone.fault
    assert StartCheck.read(alone.entry[KEY]) == alone


def test_what_is_stored_reads_back() -> None:
    trained = Trained.of(model(), 40)
    measured = StartCheck.measure(
        evaluation(0.9, 0.9, 20), evaluation(0.2, 0.9, 20), plan(), ROLES, trained
    )
    for check in (measured, StartCheck()):
        assert StartCheck.read(check.entry[KEY]) == check
    assert StartCheck.read(None) is None
