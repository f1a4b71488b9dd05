"""Three sentences about each panel: what was found, how sure it is, and whether it lasts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from unlearnbench.analysis.best_settings import rows_with_valid_start
from unlearnbench.analysis.conclusion import (
    CONCLUSION_FILE,
    Conclusion,
    conclusions,
    conclusions_json,
    read_conclusions,
)
from unlearnbench.analysis.lasting import attacked_panels
from unlearnbench.analysis.order_confidence import assess_order
from unlearnbench.errors import RecordError
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow, table

from .conftest import FAR, NEAR, REFERENCES, off, reference, run

COLUMN = "extraction_strength_forget"
TWIN = tuple(run("twin", [(0.80, off(0.2, s + 9))], seed=s) for s in range(3))


def concluded(
    records: Iterable[Record], under: Mapping[str, tuple[float, float]] | None = None
) -> tuple[Conclusion, ...]:
    """The conclusions about records; `under`: a number before relearning and under it, by method"""
    records, rows = tuple(records), table(records)
    attacked: list[TableRow] = []
    if under is not None:
        before = {name: {COLUMN: one[0]} for name, one in under.items()}
        after = {name: {COLUMN: one[1]} for name, one in under.items()}
        attacked = [
            replace(row, variant="relearning@13", metrics=after[row.method]) for row in rows
        ]
        rows = tuple(replace(r, metrics={**r.metrics, **before[r.method]}) for r in rows)
    return conclusions(
        rows, assess_order(rows_with_valid_start(rows), records), attacked_panels(rows, attacked)
    )


UNDER = {"fine-tuned": (0.9, 0.9), "retain": (0.1, 0.2)}


def test_the_best_its_doubt_and_what_comes_back() -> None:
    under = {**UNDER, "near": (0.1, 0.4), "far": (0.2, 0.3), "twin": (0.1, 0.9)}
    (found,) = concluded((*REFERENCES, *NEAR, *FAR, *TWIN), under)
    assert (found.place, found.has_best) == ("tiny, forget 10 %", True)
    assert found.found.startswith("twin at rate 1e-05, epoch 1, has the highest Forget Quality (p")
    assert "Over its 3 seeds p is between 0." in found.found
    assert found.sure.startswith(
        "Undecided: at equal utility it does not forget significantly more than near (1 of 2 "
        "tested). It rests on 3 seeds. With 40 forget questions the test distinguishes a model "
        "from the retain model only from D = 0.325 on (truth ratios that all differ by a factor of"
    )
    assert found.sure.endswith("and its own D is smaller.")
    assert found.lasts.startswith(
        "Under relearning, 13 steps, 88 % [88, 88 %] of what it removed comes back: extraction "
    )
    assert "most comes back" not in found.lasts, "of no other setting as much"
    (found,) = concluded((*REFERENCES, *NEAR, *FAR, *TWIN), {**under, "twin": (0.1, 0.2)})
    assert (
        "Of all attacked settings most comes back of near at rate 1e-05, epoch 1, under "
        "relearning, 13 steps: 25 % [25, 25 %]; "
    ) in found.lasts
    assert found.sentences == (found.found, found.sure, found.lasts)


def test_one_seed_and_no_attack() -> None:
    (found,) = concluded((*REFERENCES, NEAR[0], FAR[0]))
    assert "Over its" not in found.found
    assert "It rests on one seed: another one may change the order." in found.sure
    assert found.sure.startswith("It forgets more than the other method that was tested: far.")
    assert found.lasts == (
        "Whether it lasts is not known: no attack was run (`--set attacks=[relearning]` adds one)."
    )


def test_little_comes_back() -> None:
    (found,) = concluded((*REFERENCES, *NEAR), {**UNDER, "near": (0.1, 0.21)})
    assert "1 % [1, 1 %] of what it removed comes back, next to nothing: " in found.lasts
    assert found.sure.startswith("It rests on 3 seeds."), "no other method"


def numbers(text: str, pattern: str) -> list[float]:
    """The groups of a pattern that a sentence has exactly once."""
    (found,) = re.findall(pattern, text)
    return [float(one) for one in found]


RELEARNED = ((0.071, 0.143, 0.150, 0.108), (0.275, 0.838, 0.150, 0.131), (0.2, 0.5, 0.1, 0.2))
"""Before and after, retain model before and after: of the quickstart, and of one that is taught."""


@pytest.mark.parametrize("case", RELEARNED)
def test_figures_follow_from_the_numbers_of_their_sentence(
    case: tuple[float, float, float, float],
) -> None:
    under = {"fine-tuned": (0.960, 0.968), "near": case[:2], "retain": case[2:]}
    (found,) = concluded((*REFERENCES, *NEAR), under)
    share, before, after, retain_before, retain_after, start = numbers(
        found.lasts,
        r"(-?\d+) % \[.*?goes from (\S+) to (\S+) \(.*?: (\S+) to (\S+); start model: (\S+)\)",
    )
    assert (before, after, retain_before, retain_after) == case
    taught = max(0.0, retain_after - retain_before)
    assert share == round(100 * (after - before - taught) / (start - before))
    kept, utility, whole = numbers(found.found, r"keeps (\d+) %, (\S+) of (\S+)\)")
    assert kept == round(100 * utility / whole)


def test_the_winner_is_held_against_the_runner_up() -> None:
    keeper = [run("keeper", [(0.95, off(0.3, s + 5))], seed=s) for s in range(3)]
    (found,) = concluded((*REFERENCES, *NEAR, *FAR, *keeper))
    assert found.found.startswith("near at rate")
    assert found.sure.startswith(
        "Undecided against keeper, the runner-up: No setting of near has the utility of keeper's "
        "best, 0.950, within 0.02: near's best has 0.800 and forgets more. Try --within "
    )
    assert "It forgets more than the other method that was tested: far." in found.sure


def test_what_was_not_removed_is_not_judged() -> None:
    (found,) = concluded((*REFERENCES, *NEAR), {**UNDER, "near": (0.85, 0.9)})
    assert found.lasts == (
        "Whether it lasts is not judged: less than 25 % was removed, and could come back."
    )


def test_nobody_forgot_and_nobody_kept() -> None:
    (found,) = concluded((*REFERENCES, run("idle", [(0.9, off(3.0))])))
    assert found.found.startswith("No method forgot: no setting that keeps at least 80 %")
    assert not found.has_best
    (found,) = concluded((*REFERENCES, run("broken", [(0.3, off(0.1))])))
    assert found.found == (
        "No setting keeps at least 80 % of the start's utility (0.90). Most is kept by broken at "
        "rate 1e-05, epoch 1: utility 0.30."
    )
    assert (found.sure, found.lasts, found.has_best) == ("", "", False)


def test_an_invalid_start_is_the_only_sentence() -> None:
    records = (reference("fine-tuned", 0.02, off(3.0)), REFERENCES[1], *NEAR)
    (found,) = concluded(records)
    assert found.found.startswith("No result: the start model knows nothing")
    assert found.sentences == (found.found,)


def test_without_a_retain_model_nothing_is_the_best() -> None:
    def bare(one: Record) -> Record:
        metrics = {"model_utility": one.epochs[0].metrics["model_utility"]}
        return replace(one, epochs=(replace(one.epochs[0], metrics=metrics),))

    (found,) = concluded((bare(REFERENCES[0]), *map(bare, NEAR)))
    assert found.found == (
        "No best setting: no run has a Forget Quality, which needs an evaluated retain model."
    )


def test_several_panels_are_in_their_order_and_stored(tmp_path: Path) -> None:
    records = (*REFERENCES, *NEAR)
    other = tuple(replace(r, id=f"{r.id}b", forget_fraction=0.05) for r in records)
    found = concluded((*records, *other))
    assert [one.split for one in found] == [0.05, 0.1]
    assert found[0].sentences == found[1].sentences
    assert read_conclusions(tmp_path) == ()
    (tmp_path / CONCLUSION_FILE).write_text(conclusions_json(found), encoding="utf-8")
    assert read_conclusions(tmp_path) == found
    (tmp_path / CONCLUSION_FILE).write_text('{"panels": 3}', encoding="utf-8")
    with pytest.raises(RecordError, match="damaged"):
        read_conclusions(tmp_path)
