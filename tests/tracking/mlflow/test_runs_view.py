"""The view of a sweep's runs in MLflow: order, columns, and the link that opens it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from unlearnbench.api.benchmark import Headline, HeadlineMetric
from unlearnbench.evaluation.headlines import default_headline
from unlearnbench.reporting.tracker_links import Links
from unlearnbench.tracking.mlflow.runs_view import TAG, share_view, view_of

SWEEP = "ec6ea2e8fa854f30ab036595a40c3033"


class Client:
    """An experiment's tags, and how often they were written."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.written = 0

    def get_experiment(self, experiment: str) -> Any:
        assert experiment == "7"
        return SimpleNamespace(tags=self.tags)

    def set_experiment_tag(self, _experiment: str, name: str, value: str) -> None:
        self.tags[name] = value
        self.written += 1


def test_the_view_is_stored_once_and_the_link_names_it() -> None:
    client = Client()
    names = {share_view(client, "7", SWEEP, default_headline()) for _ in range(2)}
    (name,) = names
    assert client.written == 1
    state = json.loads(client.tags[TAG + name])
    assert state["searchFilter"] == f"tags.`mlflow.parentRunId` = '{SWEEP}'"
    assert state["orderByKey"] == "metrics.`best/log10_forget_quality`"
    assert state["orderByKey"] in state["selectedColumns"]
    assert len(client.tags[TAG + name]) < 5000  # the most that MLflow stores in a tag
    address = Links("http://h", "7", SWEEP, view=name).of_experiment
    assert address.startswith(f"http://h/#/experiments/7/runs?viewStateShareKey={name}&")


def test_the_order_is_the_headlines() -> None:
    kept = HeadlineMetric("accuracy", "Accuracy", "acc")
    left = HeadlineMetric("leak", "Leak", "leak", better="lower")
    state = view_of(SWEEP, Headline(kept, left))
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`best/leak`", True)
