"""Text of a comparison."""

from __future__ import annotations

from unlearnbench.analysis.compare_text import verdict

from .conftest import (
    FAR,
    NEAR,
    REFERENCES,
    compared,
    off,
    run,
)


class TestSentences:
    def test_what_is_shown(self) -> None:
        (panel,) = compared("near", "far", (*REFERENCES, *NEAR, *FAR)).panels
        claim, sureness, beware, power = verdict(panel, "near", "far", 1)
        assert claim.startswith(
            "tiny, forget 10 %: near forgets more than far at equal utility (Model Utility 0.800 "
            "and 0.810). near is at D = "
        )
        assert panel.test is not None
        low, high = -panel.test.high, -panel.test.low
        assert f"has p = 0.0001 and a 95 % interval from {low:.3f} to {high:.3f}" in sureness
        assert sureness.endswith(
            "over 40 questions and 3 seeds. It has the same sign in 3 of 3 seeds."
        )
        assert "seed" not in beware
        assert power.startswith("With 40 forget questions, Forget Quality distinguishes")

    def test_text_of_an_undecided_comparison(self) -> None:
        twin = run("twin", [(0.80, off(0.2, 9))])
        (panel,) = compared("near", "twin", (*REFERENCES, NEAR[0], twin)).panels
        claim, sureness, beware, _ = verdict(panel, "near", "twin", 1)
        assert "these runs do not show whether near or twin forgets more at equal" in claim
        assert "would be detected in 80 % of cases; a smaller one may remain" in sureness
        assert beware.startswith("Caveats: there is only 1 seed, and the test generalizes to other")

    def test_text_of_a_side_better_in_both(self) -> None:
        records = (*REFERENCES, run("a", [(0.89, off(0.2))]), run("b", [(0.75, off(1.0))]))
        (panel,) = compared("b", "a", records).panels
        claim = verdict(panel, "b", "a", 1)[0]
        expected = "a forgets more than b and keeps more utility (Model Utility 0.890 and 0.750)."
        assert expected in claim
