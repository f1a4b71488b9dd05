"""Three sentences about each panel: what was found, how sure it is, and whether it lasts."""

import csv
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp, sem, t

from unlearnbench.analysis.conclusion import (
    CONCLUSION_FILE,
    Conclusion,
    conclusions_json,
    read_conclusions,
)
from unlearnbench.analysis.results import Results
from unlearnbench.config.loader import load_config
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import Record
from unlearnbench.results.table import Table, TableRow, to_csv

from .conftest import FAR, GOAL, NEAR, REFERENCES, N, off, pointed, reference, run

COLUMN = "extraction_strength_forget"
TWIN = tuple(run("twin", [(0.80, off(0.2, s + 9))], seed=s) for s in range(3))
UNDER = {"fine-tuned": (0.9, 0.9), "retain": (0.1, 0.2)}


def results(
    records: Iterable[Record],
    under: Mapping[str, tuple[float, float]] | None = None,
    spread: float = 0.0,
) -> Results:
    """Results of records; `under`: a number before relearning and under it, by method.

    spread  how much more a seed has under it than the seed before
    """
    records, rows = tuple(records), table_of(records).rows
    attacked: list[TableRow] = []
    if under is not None:
        for row in rows:
            before, after = under[row.method]
            after += spread * (row.seed - 1) * (row.kind == "run")
            attacked += [
                replace(row, variant="relearning@0", metrics={COLUMN: before}),
                replace(row, variant="relearning@13", metrics={COLUMN: after}),
            ]
        rows = tuple(
            replace(row, metrics={**row.metrics, COLUMN: under[row.method][0]}) for row in rows
        )
    return Results("", records, Table(rows, tuple(attacked)))


def concluded(*args: Any) -> tuple[Conclusion, ...]:
    return results(*args).conclusions


def test_the_best_its_doubt_and_what_comes_back() -> None:
    under = {**UNDER, "near": (0.1, 0.4), "far": (0.2, 0.3), "twin": (0.1, 0.9)}
    (found,) = concluded((*REFERENCES, *NEAR, *FAR, *TWIN), under)
    assert (found.place, found.has_best) == ("tiny, forget 10 %", True)
    assert found.found.startswith(
        "twin at learning rate 1e-05, epoch 1, is recommended: it has the highest Forget Quality"
    )
    assert found.sure.startswith(
        "Undecided against near (the runner-up): at equal utility, the difference may be chance. "
        "At equal utility it forgets significantly more than far. Based on 3 seeds. With 40 forget "
        "questions, Forget Quality distinguishes"
    )
    assert found.lasts.startswith("Under relearning, 13 steps, 88 % [88, 88 %] of what it removed ")
    (found,) = concluded((*REFERENCES, *NEAR, *FAR, *TWIN), {**under, "twin": (0.1, 0.2)})
    assert found.lasts.startswith("Under relearning, 13 steps, 0 % [0, 0 %] of what it removed ")
    assert "25 %" not in found.lasts, "of near, which nobody would choose"


def test_the_hint_to_attack_has_the_rate_of_the_best_setting() -> None:
    # The attack's default rate is for 7B: a tiny model, which unlearns at 1e-3, stays as it is.
    (found,) = concluded((*REFERENCES, *NEAR))
    assert found.lasts == (
        "Robustness unknown: no attack was run "
        "(`--set 'attacks={relearning: {learning_rate: 1e-05}}'` adds one)."
    )
    option, value = shlex.split(found.lasts.split("`")[1])
    assert option == "--set"
    (attack,) = load_config("tofu_smollm2", [value]).attacks
    assert (attack.name, attack.settings["learning_rate"]) == ("relearning", 1e-5)


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
    """Every figure, again by scipy from results.csv and from the truth ratios in the records."""
    under = {"fine-tuned": (0.960, 0.968), "near": case[:2], "retain": case[2:]}
    made = results((*REFERENCES, *NEAR), under, spread=0.01)
    (found,) = made.conclusions
    rate, epoch, p, least, utility, share, start, seeds, low, high = numbers(
        found.found,
        r"^near at learning rate (\S+), epoch (\d+), .*\(p = (\S+)\) .* at least (\d+) % .*"
        r"Its utility is (\S+), (\d+) % of the start model's (\S+)\. "
        r"Over its (\d+) seeds, p is between (\S+) and (\S+)\.",
    )
    lines = [*csv.DictReader(to_csv(made.rows).splitlines())]
    (of_start,) = (float(one["model_utility"]) for one in lines if one["kind"] == "fine-tuned")
    of_runs = [one for one in lines if one["kind"] == "run" and float(one["epoch"]) == epoch]
    assert {float(one["learning_rate"]) for one in of_runs} == {rate}
    kept = fmean(float(one["model_utility"]) for one in of_runs)
    assert (utility, start) == pytest.approx((kept, of_start), abs=5e-4)
    assert share == round(100 * kept / of_start)
    assert share >= least == 80
    # The test over the answers, seed by seed; Forget Quality is averaged by its logarithm.
    tests = [ks_2samp(off(0.2, seed), GOAL, method="exact") for seed in range(3)]
    logs = [math.log10(one.pvalue) for one in tests]
    assert logs == pytest.approx([float(one["log10_forget_quality"]) for one in of_runs])
    assert [p, low, high] == [
        float(f"{10**one:.2g}") for one in (fmean(logs), min(logs), max(logs))
    ]
    seeds_too, questions, detected = numbers(
        found.sure, r"Based on (\d+) seeds\. With (\d+) .* if D is at least (\S+)\. It"
    )
    assert (seeds, seeds_too, questions) == (len(of_runs), len(of_runs), N)
    ranks = np.arange(N)
    beyond = (h for h in ranks if ks_2samp(ranks, ranks + h - 0.5, method="exact").pvalue <= 0.05)
    assert detected == float(f"{next(beyond) / N:.3g}")
    # What comes back, beyond what the retain model is taught, of what was removed.
    steps, back, back_low, back_high, before, after, *retain, learned = numbers(
        found.lasts,
        r"relearning, (\d+) steps, (-?\d+) % \[(-?\d+), (-?\d+) %\] .* goes from "
        r"(\S+) to (\S+) \(.*?: (\S+) to (\S+); start model: (\S+)\)",
    )
    assert (steps, before, after, *retain, learned) == (13, *case, 0.960)
    taught = max(0.0, retain[1] - retain[0])
    shares = [(after + more - before - taught) / (learned - before) for more in (-0.01, 0.0, 0.01)]
    ends = t.interval(0.95, 2, loc=fmean(shares), scale=sem(shares))
    assert [back, back_low, back_high] == [round(100 * one) for one in (fmean(shares), *ends)]


@pytest.mark.parametrize(
    ("records", "starts"),
    [
        ((*REFERENCES, run("idle", [(0.9, off(3.0))])), "No method forgot: no setting that keeps "),
        (
            (*REFERENCES, run("broken", [(0.3, off(0.1))])),
            "No setting keeps at least 80 % of the start model's utility (0.90). broken at",
        ),
        (
            (*REFERENCES, pointed("a", [(0.85, None)], method="a"), run("broken", [(0.3, off(1))])),
            "No setting with a Forget Quality keeps at least 80 % of the start model's utility "
            "(0.90). broken at learning rate 1e-05, epoch 1, has the highest utility: 0.30.",
        ),
        (
            (
                *(*REFERENCES, pointed("a0", [(0.85, -1.0)])),
                pointed("a1", [(0.85, None)], seed=1),
            ),
            "No setting with a Forget Quality keeps at least 80 % of the start model's utility "
            "(0.90). npo at learning rate 1e-05, epoch 1, has the highest utility: 0.85.",
        ),
        (
            (*REFERENCES, pointed("a", [(None, -1.0)])),
            "No setting keeps at least 80 % of the start model's utility (0.90). None of them has "
            "a number for utility.",
        ),
        (
            (reference("fine-tuned", 0.02, off(3.0)), REFERENCES[1], *NEAR),
            "No result: the start model knows nothing",
        ),
        (
            (*REFERENCES, replace(NEAR[0], status="failed", error="OSError: disk full")),
            "No result: no run has ended with a result (1 failed). The first: near",
        ),
        (
            [
                replace(r, epochs=(replace(r.epochs[0], metrics={"model_utility": 0.9}),))
                for r in (REFERENCES[0], *NEAR)
            ],
            "No best setting: no run has a Forget Quality, which needs an evaluated retain model.",
        ),
    ],
)
def test_the_reason_why_nothing_is_the_best(records: Sequence[Record], starts: str) -> None:
    (found,) = concluded(records)
    assert found.found.startswith(starts)
    assert not found.has_best
    assert starts.startswith("No method") or found.sentences == (found.found,)


def test_several_panels_are_in_their_order_and_stored(tmp_path: Path) -> None:
    records = (*REFERENCES, *NEAR)
    other = tuple(replace(r, id=f"{r.id}b", forget_fraction=0.05) for r in records)
    found = concluded((*records, *other))
    assert [one.split for one in found] == [0.05, 0.1]
    assert found[0].sentences == found[1].sentences
    assert read_conclusions(tmp_path) == ()
    (tmp_path / CONCLUSION_FILE).write_text(conclusions_json(found), encoding="utf-8")
    assert read_conclusions(tmp_path) == found
