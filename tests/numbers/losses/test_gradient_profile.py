"""Gradients by hand: CE-U's grows with confidence, gradient ascent's vanishes."""

import math
from itertools import pairwise

import pytest
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.method import LossBatch, Method, Needs
from unlearnbench.report.gradient_profile import POINTS, GradientProfiles, gradient_profiles


def made(*names: str) -> dict[str, Method | Wrapper]:
    return {name: registry.load_method(name)() for name in names}


@pytest.fixture(scope="module")
def found() -> GradientProfiles:
    return gradient_profiles(
        made("ce-u", "gradient-ascent", "npo", "kl-minimization", "dpo", "idk")
    )


def test_the_probabilities_go_from_one_end_to_the_other_in_equal_log_odds(
    found: GradientProfiles,
) -> None:
    points = found.curves["ce-u"]
    assert len(points) == POINTS
    assert points[0].probability == pytest.approx(1e-6, rel=1e-9)
    assert 1 - points[-1].probability == pytest.approx(1e-6, rel=1e-9)
    steps = {round(b.log_odds - a.log_odds, 12) for a, b in pairwise(points)}
    assert len(steps) == 1


def test_ce_u_pushes_with_p(found: GradientProfiles) -> None:
    for point in found.curves["ce-u"]:
        assert point.true == pytest.approx(point.probability, rel=1e-9)
        assert point.other < 0
        assert point.norm > point.true
    assert [p.norm for p in found.curves["ce-u"]] == sorted(p.norm for p in found.curves["ce-u"])


def test_gradient_ascent_pushes_with_1_minus_p_and_so_do_its_kin(found: GradientProfiles) -> None:
    for name in ("gradient-ascent", "kl-minimization"):
        for point in found.curves[name]:
            assert point.true == pytest.approx(1 / (1 + math.exp(point.log_odds)), rel=1e-9)
    norms = [p.norm for p in found.curves["gradient-ascent"]]
    assert norms == sorted(norms, reverse=True)


def test_npo_is_gradient_ascent_with_a_weight_from_the_reference(found: GradientProfiles) -> None:
    beta, start = 0.1, 0.99
    for point in found.curves["npo"]:
        p = point.probability
        weight = 2 * p**beta / (p**beta + start**beta)
        assert point.true == pytest.approx(weight * (1 - p), rel=1e-6, abs=1e-12)
    same = gradient_profiles(made("npo", "gradient-ascent"), None)
    for one, other in zip(same.curves["npo"], same.curves["gradient-ascent"], strict=True):
        assert one.true == pytest.approx(other.true, rel=1e-9)


def test_statistics_and_texts_are_given_as_in_training() -> None:
    """Of one row BalDRO is NPO; JenSUN reads the tokens of a text."""
    rows = gradient_profiles(made("baldro", "npo", "jensun"))
    assert not rows.without
    for one, other in zip(rows.curves["baldro"], rows.curves["npo"], strict=True):
        assert one.norm == pytest.approx(other.norm, rel=1e-9)


def test_methods_without_a_curve_have_a_reason(found: GradientProfiles) -> None:
    assert found.without == {"idk": "does not read the forgotten answers, only refusal, retain"}

    class Raising(Method):
        def loss(self, batch: LossBatch) -> Tensor:
            raise ValueError(f"no {len(batch.parts)}")

    class Blind(Method):
        needs = Needs(parts=frozenset({"forget", "retain"}))

        def loss(self, batch: LossBatch) -> Tensor:
            return batch.retain.mean_tokens(batch.retain.cross_entropy())

    blind = {"blind": Blind(), "lunar": registry.load("methods", "lunar")()}
    reasons = gradient_profiles(blind).without
    assert reasons == dict.fromkeys(blind, "does not read the logits of the forgotten answers")
    reasons = gradient_profiles({"raising": Raising()}).without
    assert reasons == {"raising": "raised ValueError: no 1; see `methods check raising`"}
