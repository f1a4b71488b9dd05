"""The scores per question at their ends: retain model, start model, destroyed model."""

import pytest

from unlearnbench.api.metric import EvaluatedModel, MetricInputs, Summary, Values
from unlearnbench.metrics.forgotten import PARTS, Forgotten
from unlearnbench.metrics.kept import Kept
from unlearnbench.metrics.memorization_score_ou import PARTS as OU_PARTS
from unlearnbench.metrics.memorization_score_ou import MemorizationScoreOU
from unlearnbench.metrics.private import ATTACKS, Private
from unlearnbench.metrics.privleak import PrivLeak
from unlearnbench.metrics.removed import Removed
from unlearnbench.metrics.utility import Utility


def model(parts: tuple[str, ...], value: float | None, end: str = "_forget") -> EvaluatedModel:
    return EvaluatedModel({}, {f"{name}{end}": value for name in parts})


def score(
    summary: Summary,
    own: EvaluatedModel,
    retain: EvaluatedModel | None = None,
    start: EvaluatedModel | None = None,
) -> float | None:
    values: Values = summary.compute(MetricInputs(own, retain, start))
    (column, *_) = summary.columns()
    return values.get(column.name)


def test_forgotten_is_closeness_to_the_retain_model() -> None:
    start, retain = model(PARTS, 0.9), model(PARTS, 0.3)
    for own, expected in ((0.9, 0), (0.3, 1), (0.6, 0.5), (0.0, 0.5), (1.0, 0)):
        found = score(Forgotten(), model(PARTS, own), retain, start)
        assert found == pytest.approx(expected), "beyond the retain model it falls again"
    assert score(Forgotten(), retain, None, start) is None
    assert score(Forgotten(), model(PARTS, None), retain, start) is None


def test_forgotten_of_other_columns_reads_only_these() -> None:
    def of(rouge: float, probability: float) -> EvaluatedModel:
        return EvaluatedModel({}, {"rouge_forget": rouge, "probability_forget": probability})

    own = Forgotten(of=("rouge_forget", "probability_forget"))
    assert own.parts() == ("rouge_forget", "probability_forget")
    start, retain = of(0.9, 0.8), of(0.4, 0.2)
    # Closeness: 1 − |0.5 − 0.4| / 0.5 = 0.8 and 1 − |0.05 − 0.2| / 0.6 = 0.75.
    expected = 2 / (1 / 0.8 + 1 / 0.75)
    assert score(own, of(0.5, 0.05), retain, start) == pytest.approx(expected)
    assert score(Forgotten(), of(0.5, 0.05), retain, start) is None


def test_removed_is_relative_to_the_start_model_alone() -> None:
    parts = Removed().of

    def of(*values: float | None) -> EvaluatedModel:
        return EvaluatedModel({}, dict(zip(parts, values, strict=True)))

    start = of(0.8, 1.0, 0.5, 0.4)
    assert score(Removed(), start, None, start) == 0
    assert score(Removed(), of(0, 0, 0, 0), None, start) == 1, "over-forgetting cannot be seen"
    # What grows above the start model is not removed: 1 − min(1, 0.9 / 0.8) = 0.
    assert score(Removed(), of(0.9, 0, 0, 0), None, start) == 0
    found = score(Removed(), of(0.4, 0.25, 0.25, 0.1), None, start)
    assert found == pytest.approx(4 / (1 / 0.5 + 1 / 0.75 + 1 / 0.5 + 1 / 0.75))
    assert score(Removed(), start) is None
    assert score(Removed(), of(None, 0, 0, 0), None, start) is None
    assert score(Removed(), start, None, of(0, 1, 1, 1)) is None, "nothing was there to remove"


def test_utility_is_the_harmonic_mean_of_its_columns() -> None:
    model = EvaluatedModel({}, {"probability_retain": 0.5, "rouge_retain": 0.25, "other": 0.1})
    assert score(Utility(), model) == pytest.approx(2 / (1 / 0.5 + 1 / 0.25))
    assert score(Utility(of=("other",)), model) == pytest.approx(0.1)
    assert score(Utility(of=("other", "missing")), model) is None


def test_the_score_of_open_unlearning_rewards_destruction() -> None:
    start = model(OU_PARTS, 0.8)
    found = [score(MemorizationScoreOU(), model(OU_PARTS, v), None, start) for v in (0.8, 0.4, 0.0)]
    assert found == pytest.approx([0, 0.5, 1])
    assert score(MemorizationScoreOU(), model(OU_PARTS, 1.0), None, start) == 0


def test_private_is_relative_to_the_retain_model_and_never_to_a_half() -> None:
    retain = model(ATTACKS, 0.4, end="")
    for own, expected in ((0.4, 1), (1.0, 0), (0.0, 0), (0.2, 0.5), (0.7, 0.5)):
        assert score(Private(), model(ATTACKS, own, end=""), retain) == pytest.approx(expected)
    assert score(Private(), retain) is None


def test_privleak_of_the_published_models() -> None:
    def of(area: float) -> EvaluatedModel:
        return EvaluatedModel({}, {"mia_min_k": area})

    # open-unlearning's Llama-3.2-1B on forget10 against retain90.
    assert score(PrivLeak(), of(0.99665), of(0.3826125)) == pytest.approx(-99.457391, abs=1e-6)
    assert score(PrivLeak(), of(0.4), of(0.4)) == 0
    assert score(PrivLeak(), of(0.4)) is None


def test_kept_is_capped_at_the_start_model() -> None:
    def of(utility: float, distinct: float) -> EvaluatedModel:
        return EvaluatedModel({}, {"model_utility": utility, "repetition_forget": distinct})

    start = of(0.6, 0.9)
    assert score(Kept(), of(0.7, 1.0), None, start) == 1
    assert score(Kept(), of(0.3, 0.9), None, start) == pytest.approx(2 / (1 + 2))
    assert score(Kept(), of(0.6, 0.0), None, start) == 0
    assert score(Kept(), of(0.6, 0.9)) is None
    one = Kept(of=("model_utility",))
    assert one.parts() == ("model_utility",)
    assert score(one, of(0.3, 0.0), None, start) == pytest.approx(0.5)


def test_scores_name_the_columns_that_they_are_made_of() -> None:
    for summary in (Forgotten(), Removed(), Private(), Kept(), Utility(), MemorizationScoreOU()):
        values = dict.fromkeys(summary.parts(), 0.5)
        same = EvaluatedModel({}, values)
        assert score(summary, same, same, same) is not None
        for name in values:
            assert score(summary, EvaluatedModel({}, values | {name: None}), same, same) is None
    assert Forgotten().parts()[0] == "extraction_strength_forget"
