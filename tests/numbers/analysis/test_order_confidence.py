"""Order of the methods on each panel, and where it is in doubt."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from unlearnbench.analysis.best_settings import panels
from unlearnbench.analysis.method_order import PanelOrder, Rivals, doubts
from unlearnbench.analysis.order_confidence import rivals
from unlearnbench.analysis.results import Results
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import Record
from unlearnbench.stats.ks_test import ks_power

from .conftest import (
    FAR,
    GOAL,
    NEAR,
    REFERENCES,
    compared,
    evaluation,
    off,
    pointed,
    run,
)

Point = tuple[float | None, float | None]
START = pointed("fine-tuned", [(0.9, -10.0)], "fine-tuned")


def order(by_method: Mapping[str, Sequence[Sequence[Point]]], *more: Record) -> PanelOrder:
    """The order of methods whose runs pass through these points, by method and seed."""
    runs = [
        pointed(f"{method}-{seed}", points, method=method, seed=seed)
        for method, seeds in by_method.items()
        for seed, points in enumerate(seeds)
    ]
    (panel,) = Results.of((START, *runs, *more), name="").claims.panels
    return panel


def test_order_and_hypervolume() -> None:
    panel = order(
        {
            "slow": [[(0.9, -9.0), (0.8, -8.0)]],
            "good": [[(0.8, -4.0)], [(0.8, -2.0)], [(0.8, -3.0)]],
            "broken": [[(0.3, -1.0)]],
        }
    )
    assert [(one.method, one.seeds) for one in panel.methods] == [
        *(("good", 3), ("slow", 1), ("broken", 0))
    ]
    # good: 0.8 · 7; slow: 0.9 · 1 + 0.8 · 1; broken: 0.3 · 9, though it is nobody's best.
    areas = [one.hypervolume for one in panel.methods]
    assert areas == pytest.approx([5.6, 1.7, 2.7])
    text = " ".join(panel.sentences)
    assert (
        "No setting keeps at least 80 % of the start model's utility: broken. Based on 3 seeds."
        in text
    )
    assert [one.place for one in panel.methods] == [1, None, None]
    assert "One seed: no order (slow)." in text, "a shared place would read as a tie"


@pytest.mark.parametrize(
    ("qualities", "places", "doubt"),
    [
        ({"a": (-1.0, -1.2, -1.1), "b": (-2.0, -2.2, -2.1)}, [1, 2], "Based on 3 seeds."),
        (
            {"a": (-1, -2.5, -1.5), "b": (-2, -2.9, -2.1), "c": (-8, -8.2, -8.1)},
            [1, 1, 3],
            "In one place by the headline number (the difference is within seed noise): a and b.",
        ),
        (
            {"a": (-1.0, -1.1), "b": (-8.0, -8.2, -8.1)},
            [None, 1],
            "Based on 2 seeds: use at least 3 to rank methods.",
        ),
        (
            {"a": (-1.0,), "b": (-2, -2.9, -2.1), "c": (-2, -3, -2.2), "d": (-8, -8.2, -8.1)},
            [None, 1, 1, 3],
            "One seed: no order (a).",
        ),
        ({"a": (-1.0, -1.1), "b": (-2.0, -2.1)}, [None, None], "Two seeds: no order (a, b)."),
        (
            {"a": (-1.0,), "b": (-1.0,)},
            [None, None],
            "Based on one seed: use at least 3 to rank methods.",
        ),
        ({"a": (-1.0,), "b": (-1.0,)}, [None, None], "One seed: no order (a, b)."),
    ],
)
def test_places_are_shared_and_doubts_named(
    qualities: Mapping[str, Sequence[float]], places: list[int], doubt: str
) -> None:
    panel = order({name: [[(0.8, v)] for v in values] for name, values in qualities.items()})
    assert [one.place for one in panel.methods] == places
    assert doubt in " ".join(panel.sentences)


def test_without_a_start_there_is_neither_hypervolume_nor_order() -> None:
    (panel,) = Results.of([pointed("a", [(0.8, -1.0)])], name="").claims.panels
    assert panel.methods[0].hypervolume is None
    assert (panel.leader, panel.sentences) == (None, ())


@pytest.mark.parametrize("known", [True, False])
def test_what_is_detected_comes_from_the_retain_models_ratios_or_their_number(known: bool) -> None:
    ratios = np.exp(np.random.default_rng(1).normal(size=30))
    stored = evaluation(ratios) if known else evaluation(GOAL, profile="tofu@1a2b3c4d")
    retain = replace(pointed("r", [(0.9, 0.0)], "retain"), evaluations={0: stored})
    panel = order({"a": [[(0.8, -1.0)]]}, retain)
    assert panel.sensitivity is not None
    expected = ks_power(ratios if known else 80)
    assert panel.sensitivity.n == expected.n
    assert panel.sensitivity.shift == pytest.approx(expected.shift)


class TestRivals:
    """Tests of the leading method against the others."""

    TWIN = tuple(run("twin", [(0.80, off(0.2, s + 9))], seed=s) for s in range(3))
    AWAY = run("away", [(0.95, off(2.9))])

    def rivals(self, *records: Record) -> Rivals:
        (panel,) = panels(table_of(records).rows)
        found = rivals(panel, records)
        assert found is not None
        return found

    def test_rivals_are_separated_by_significance_as_in_compare(self) -> None:
        records = (*REFERENCES, *NEAR, *FAR, *self.TWIN)
        found = self.rivals(*records)
        assert {found.leader, *found.same} == {"near", "twin"}
        assert (found.apart, found.untested) == (("far",), {})
        for other, better in [(found.same[0], None), ("far", found.leader)]:
            (panel,) = compared(found.leader, other, records).panels
            assert (panel.better and panel.better.name) == better

    @pytest.mark.parametrize("of_leader", [1, 2, 3])
    @pytest.mark.parametrize("of_other", [1, 2, 3])
    def test_nothing_is_claimed_significant_with_fewer_than_three_seeds(
        self, of_leader: int, of_other: int
    ) -> None:
        records = (*REFERENCES, *NEAR[:of_leader], *FAR[:of_other])
        found = self.rivals(*records)
        assert (found.leader, found.apart) == ("near", ("far",)), "the questions distinguish them"
        (panel,) = Results.of(records, name="").claims.panels
        text = " ".join(doubts(panel))
        if min(of_leader, of_other) < 3:
            assert found.few_seeds == {"far"}
            assert "significantly" not in text
            assert text.startswith(
                "Undecided against far (the runner-up): at equal utility, the difference is more "
                "than chance over questions, but with fewer than 3 seeds it may be chance over "
                "seeds."
            )
        else:
            assert not found.few_seeds
            assert text.startswith("At equal utility it forgets significantly more than far.")

    def test_no_test_is_named_with_its_reason(self) -> None:
        records = (*REFERENCES, *NEAR, self.AWAY)
        found = self.rivals(*records)
        assert (found.same, found.apart, [*found.untested]) == ((), (), ["away"])
        (panel,) = compared("near", "away", records).panels
        assert (found.runner_up, found.untested["away"]) == ("away", panel.why_not)

    def test_answers_that_cannot_be_read_leave_a_method_untested(self) -> None:
        found = self.rivals(*REFERENCES, *NEAR, *(replace(r, evaluations={}) for r in FAR))
        assert "has no evaluation of epoch 2" in found.untested["far"]


def test_mean_ranks_name_who_is_last_without_a_setting_and_who_lacks_a_panel() -> None:
    points = {"x": [(0.8, -1.0)], "y": [(0.8, -2.0)], "z": [(0.1, -1.0)]}
    records = [START, *(pointed(name, where, method=name) for name, where in points.items())]
    elsewhere = [replace(record, id=f"{record.id}2", model="b") for record in records]
    left = (*records, *(r for r in elsewhere if r.method != "y"))
    claims = Results.of(left, name="").claims
    assert [(item.family, item.mean) for item in claims.ranks] == [
        *(("x", 1.0), ("z", 2.5), ("y", None))
    ]
    assert claims.summary == (
        "Ranks of 2 methods by their best settings, from 2 panels (models × splits). Last because "
        "no setting keeps its utility: z (2 of 2). Left out because not run on every panel: y."
    )
