"""Settings of equal utility, and the runs that a name stands for."""

from typing import Any

import pytest

from unlearnbench.analysis.equal_utility import with_retain_term
from unlearnbench.base.errors import RecordError
from unlearnbench.results.records import Record

from .conftest import (
    GOAL,
    NEAR,
    REFERENCES,
    chosen,
    off,
    run,
    side,
)

A, KEPT = run("a", [(0.89, off(0.2))]), run("a", [(0.87, off(0.5))])


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # b's epoch 2 is best, but the best setting of higher utility sets the level.
        (KEPT, run("b", [(0.86, off(1.0)), (0.75, off(0.1))]), (1, 1, True)),
        # Of several settings at the level the one of highest quality is compared.
        (KEPT, run("b", [(0.88, off(2.0)), (0.86, off(0.9)), (0.85, off(1.5))]), (1, 2, True)),
        # A side that is better in both is compared without equal utility,
        (A, run("b", [(0.75, off(1.0))]), (1, 1, False)),
        # also if its candidate at the level is: b's epoch 1 keeps and forgets more than a's best.
        (
            run("a", [(0.80, off(1.0))]),
            run("b", [(0.89, off(0.4)), (0.75, off(0.1))]),
            (1, 1, False),
        ),
        # The tolerance does not reach below the required utility, 0.8 · 0.9.
        (
            run("a", [(0.73, off(0.5))]),
            run("b", [(0.725, off(1.0)), (0.715, off(0.1))]),
            (1, 1, True),
        ),
        (A, run("b", [(0.5, off(0.1))]), "No setting of b keeps 80 % of the start model's utility"),
    ],
)
def test_settings_of_equal_utility_are_matched(a: Record, b: Record, expected: Any) -> None:
    """All are off by 3 at the start; the less they are off, the more was forgotten."""
    assert chosen("a", "b", (*REFERENCES, a, b)) == expected
    if not isinstance(expected, str):
        of_a, of_b, equal = expected
        assert chosen("b", "a", (*REFERENCES, a, b)) == (of_b, of_a, equal)


class TestUnequal:
    @pytest.mark.parametrize("utility", [0.7413, 0.75, 0.79, 0.8697, 0.86])
    def test_the_proposed_tolerance_is_the_least_sufficient_one(self, utility: float) -> None:
        b = run("b", [(utility, off(0.5)), (0.73, off(0.1))])
        records = (*REFERENCES, run("a", [(0.89, off(1.0))]), b)
        text = chosen("a", "b", records)
        within = float(str(text).partition("--within ")[2].partition(",")[0])
        assert f"compares 0.890 with {utility:.3f}" in text
        assert within - (0.89 - utility) == pytest.approx(0.0005, abs=0.0005001)
        assert chosen("a", "b", records, tolerance=within) == (1, 1, True)
        assert isinstance(chosen("a", "b", records, tolerance=within - 0.001), str)


class TestFind:
    RECORDS = (
        *REFERENCES,
        *NEAR,
        run("near", [(0.8, off(2.0))], learning_rate=1e-4, id="0a1b"),
        run("far", [(0.8, off(2.0))], id="0a2c"),
    )

    @pytest.mark.parametrize(
        ("name", "count"),
        [("near", 7), ("near lr 1e-05", 6), ("near  lr 0.0001", 1), ("0a1b", 1), ("0a2", 1)],
    )
    def test_names(self, name: str, count: int) -> None:
        assert len(side(name, self.RECORDS).rows) == count

    def test_a_label_with_hyper_parameters(self) -> None:
        specs = [{"method": {"hyperparameters": {"beta": b}}} for b in (0.1, 0.5)]
        records = [run("npo", [(0.8, GOAL)], spec=spec, id=f"r{i}") for i, spec in enumerate(specs)]
        assert [r.run_id for r in side("npo (beta=0.5)", records).rows] == ["r1"]
        assert len(side("npo", records).rows) == 2

    @pytest.mark.parametrize(
        ("name", "families", "full"),
        [
            ("npo", ["idk", "npo+nll"], "npo+nll"),
            ("npo  lr 1e-05", ["npo+nll"], "npo+nll lr 1e-05"),
            ("npo", ["npo", "npo+nll"], "npo"),
            ("npo+kl", ["npo+nll"], "npo+kl"),
            ("0a1b", ["npo+nll"], "0a1b"),
        ],
    )
    def test_a_method_may_lack_its_only_retain_term(
        self, name: str, families: list[str], full: str
    ) -> None:
        assert with_retain_term(name, families) == full

    def test_a_method_of_several_forms_is_to_be_named_in_full(self) -> None:
        with pytest.raises(RecordError, match=r"'npo' ran in several forms: npo\+kl, npo\+nll;"):
            with_retain_term("npo", ["npo+kl", "npo+nll"])
