"""Settings of equal utility, and the runs that a name stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from unlearnbench.analysis.equal_utility import with_retain_term
from unlearnbench.cli.main import main
from unlearnbench.errors import RecordError
from unlearnbench.results.records import write_record

from .conftest import (
    FAR,
    GOAL,
    NEAR,
    REFERENCES,
    chosen,
    off,
    run,
    side,
)


class TestMatch:
    """near and far are off by 3 at the start; the less they are off, the more was forgotten."""

    def test_best_settings_of_equal_utility_are_compared(self) -> None:
        assert chosen("near", "far", (*REFERENCES, *NEAR, *FAR)) == (2, 2, True)
        assert chosen("far", "near", (*REFERENCES, *NEAR, *FAR)) == (2, 2, True)

    def test_the_best_setting_of_higher_utility_sets_the_level(self) -> None:
        other = run("other", [(0.86, off(1.0)), (0.75, off(0.1))])
        records = (*REFERENCES, run("kept", [(0.87, off(0.5))]), other)
        assert chosen("kept", "other", records) == (1, 1, True), "not epoch 2, which is best"
        assert chosen("other", "kept", records) == (1, 1, True)

    def test_of_several_settings_at_the_level_the_highest_quality_is_compared(self) -> None:
        other = run("other", [(0.88, off(2.0)), (0.86, off(0.9)), (0.85, off(1.5))])
        records = (*REFERENCES, run("kept", [(0.87, off(0.5))]), other)
        assert chosen("kept", "other", records) == (1, 2, True)

    def test_a_side_better_in_both_is_compared_without_equal_utility(self) -> None:
        records = (*REFERENCES, run("a", [(0.89, off(0.2))]), run("b", [(0.75, off(1.0))]))
        assert chosen("a", "b", records) == (1, 1, False)
        assert chosen("b", "a", records) == (1, 1, False)

    def test_the_candidate_at_the_level_may_be_better_in_both(self) -> None:
        # a's best keeps most; of b, epoch 1 keeps still more, and forgets more than a's.
        b = run("b", [(0.89, off(0.4)), (0.75, off(0.1))])
        records = (*REFERENCES, run("a", [(0.80, off(1.0))]), b)
        assert chosen("a", "b", records) == (1, 1, False)

    def test_unequal_utilities_are_reported_with_a_sufficient_tolerance(self) -> None:
        records = (*REFERENCES, run("a", [(0.89, off(1.0))]), run("b", [(0.75, off(0.1))]))
        assert chosen("a", "b", records) == (
            "No setting of b has the utility of a's best, 0.890, within 0.02: b's best has 0.750 "
            "and forgets more. Try --within 0.14, which compares 0.890 with 0.750; or train with "
            "more epochs or learning rates"
        )
        assert chosen("b", "a", records) == chosen("a", "b", records)
        assert chosen("a", "b", records, tolerance=0.15) == (1, 1, True)

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

    def test_no_setting_with_the_required_utility(self) -> None:
        records = (*REFERENCES, run("a", [(0.89, off(1.0))]), run("b", [(0.5, off(0.1))]))
        expected = "No setting of b keeps 80 % of the fine-tuned model's utility"
        assert chosen("a", "b", records) == expected

    def test_the_tolerance_does_not_reach_below_the_required_utility(self) -> None:
        b = run("b", [(0.725, off(1.0)), (0.715, off(0.1))])  # 0.8 · 0.9 is 0.72
        records = (*REFERENCES, run("a", [(0.73, off(0.5))]), b)
        assert chosen("a", "b", records) == (1, 1, True)


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

    def test_the_completed_name_is_printed(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for one in (
            *REFERENCES,
            run("npo+nll", [(0.8, off(2.0))], id="1"),
            run("idk", [(0.8, off(1.0))]),
        ):
            write_record(one, tmp_path)
        assert main(["compare", "npo", "idk", "--in", str(tmp_path)]) == 0
        out, err = capsys.readouterr()
        assert "npo: taken as npo+nll, the one form in which it ran" in err
        assert "npo+nll" in out
