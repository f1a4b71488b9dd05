"""Tests of the leading method against the others."""

from __future__ import annotations

from dataclasses import replace

from unlearnbench.analysis.rivals import rivals
from unlearnbench.results.table import table

from .conftest import (
    FAR,
    NEAR,
    REFERENCES,
    TINY,
    compared,
    off,
    run,
)


class TestRivals:
    """Tests of the leading method against the others."""

    TWIN = tuple(run("twin", [(0.80, off(0.2, s + 9))], seed=s) for s in range(3))
    AWAY = run("away", [(0.95, off(2.9))])

    def test_rivals_are_separated_by_significance(self) -> None:
        records = (*REFERENCES, *NEAR, *FAR, *self.TWIN)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert {found.leader, *found.same} == {"near", "twin"}
        assert (found.apart, found.untested) == (("far",), ())
        assert (found.questions, found.resolution) == (40, 0.325)
        assert set(found.near_retain) == {"near", "twin"}
        first, second = found.sentences
        assert first.startswith(
            f"{found.leader} leads, but does not forget significantly more than 1 method: "
        )
        assert second.startswith("All 2 of them lie below D = 0.325, the least distance from")

    def test_agrees_with_compare(self) -> None:
        records = (*REFERENCES, *NEAR, *FAR, *self.TWIN)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        for other, better in [(found.same[0], None), ("far", found.leader)]:
            (panel,) = compared(found.leader, other, records).panels
            assert (panel.better and panel.better.name) == better

    def test_without_a_rival(self) -> None:
        records = (*REFERENCES, *NEAR, *FAR)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert found.sentences[0].startswith(
            "near forgets more than 1 method tested (paired test over"
        )

    def test_no_test_is_named_with_the_command_that_states_why(self) -> None:
        records = (*REFERENCES, *NEAR, self.AWAY)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert (found.same, found.apart, found.untested) == ((), (), ("away",))
        assert "`unlearnbench compare near away` prints the reason." in found.sentences[0]

    def test_answers_that_cannot_be_read_leave_a_method_untested(self) -> None:
        records = (*REFERENCES, *NEAR, *(replace(r, evaluations={}) for r in FAR))
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert found.untested == ("far",)

    def test_no_rivals_without_a_best_setting(self) -> None:
        records = (*REFERENCES, run("a", [(0.1, off(0.1))]))
        assert rivals(table(records), records, *TINY) is None
