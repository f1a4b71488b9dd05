"""Metric points: what is measured under an attack has names of its own."""

from __future__ import annotations

import re
from typing import Any

from unlearnbench.results.records import EpochResult
from unlearnbench.tracking.mlflow.metric_points import metrics


def test_numbers_under_attacks_are_apart_from_plain_ones(kit: Any) -> None:
    plain = kit.record("aaaa")
    under = tuple(
        EpochResult(2, {"rouge_forget": value, "ks_n": None}, 0.0, 1.0, variant=variant)
        for variant, value in (("relearning@13", 0.25), ("own attack@a/b:c", 0.5))
    )
    points = metrics(kit.record("aaaa", attacked=under))
    new = {one.name: one for one in points if one not in metrics(plain)}
    assert {name: (one.value, one.step) for name, one in new.items()} == {
        "under.relearning.13/rouge_forget": (0.25, 2),
        "under.own-attack.a-b-c/rouge_forget": (0.5, 2),
    }
    assert all(re.fullmatch(r"[/\w.-]+", name) for name in new), "which every store accepts"
