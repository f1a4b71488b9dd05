"""Entries of a run: names, moments, and numbers as text."""

import re
from typing import Any

from unlearnbench.report.sweep_tracker import metrics, params
from unlearnbench.results.records import EpochResult


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


def test_numbers_sort_correctly_as_text(kit: Any) -> None:
    rates = [2e-6, 1e-5, 2e-5, 1e-4, 3e-3, 0.1]
    texts = [params(kit.record("aaaa", learning_rate=rate))["learning_rate"] for rate in rates]
    assert texts == sorted(texts) == ["0.000002", "0.00001", "0.00002", "0.0001", "0.003", "0.1"]
    assert [float(text) for text in texts] == rates
