"""Differences in training between compared methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unlearnbench.analysis.compare_text import verdict
from unlearnbench.analysis.training_differences import training_differences

from .conftest import (
    REFERENCES,
    compared,
    off,
    run,
)


class TestUnequal:
    """Settings in which the methods differ, and that no number shows."""

    def spec(self, **more: Any) -> dict[str, Any]:
        training = {"weight_decay": more.pop("weight_decay", 0.0)}
        return {"spec": {"method": {"hyperparameters": more}, "training": training}}

    def test_between_two_methods(self) -> None:
        a = run("a", [(0.8, off(0.2))], **self.spec(ignore_first_answer_tokens=1, beta=0.1))
        b = run("b", [(0.8, off(1.0))], **self.spec(ignore_first_answer_tokens=0, weight_decay=0.1))
        (panel,) = compared("a", "b", (*REFERENCES, a, b)).panels
        assert panel.unequal == (
            "ignore_first_answer_tokens is 1 for a and 0 for b",
            "training.weight_decay is 0 for a and 0.1 for b",
        )
        text = verdict(panel, "a", "b", 1)[2]
        assert "trained differently: ignore_first_answer_tokens is 1 for a and 0 for" in text

    def test_between_settings_of_one_method(self) -> None:
        runs = [run("a", [(0.8, off(0.2))], learning_rate=r, **self.spec(beta=r)) for r in (1, 2)]
        assert training_differences({str(one.learning_rate): one for one in runs}) == ()

    def test_among_many_methods(self) -> None:
        values = {"a": 1, "b": 0, "c": 0, "d": 0}
        runs = {
            name: run(name, [], **self.spec(ignore_first_answer_tokens=v))
            for name, v in values.items()
        }
        runs["a"].spec["method"]["hyperparameters"]["beta"] = 0.1
        assert training_differences(runs) == (
            "ignore_first_answer_tokens is 1 for a and 0 for the other 3",
        )
        still = replace(runs["d"], learning_rate=None, spec={"training": {"weight_decay": 9}})
        assert len(training_differences(runs | {"d": still})) == 1, (
            "what trains nothing has no rules of training"
        )
