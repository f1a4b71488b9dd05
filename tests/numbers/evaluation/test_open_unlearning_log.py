"""open-unlearning's logs: losses and answers of each set, Forget Quality between two of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp

from unlearnbench.config.profiles import OPEN_UNLEARNING
from unlearnbench.evaluation.logs import read_log
from unlearnbench.evaluation.summary import summarize

N = 12


def by_index(rows: list[dict[str, Any]]) -> dict[str, Any]:
    # Written in no order: JSON promises none.
    pairs = [(str(i), row) for i, row in enumerate(rows)]
    return {"agg_value": 0.5, "value_by_index": dict(pairs[::-1])}


def losses(draws: np.random.Generator, k: int | None = None) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for _ in range(N):
        loss = draws.random() if k is None else draws.random(k).tolist()
        rows.append({"prob": np.exp(-np.array(loss)).tolist(), "avg_loss": loss})
    return by_index(rows)


def log(seed: int) -> dict[str, Any]:
    draws = np.random.default_rng(seed)
    document: dict[str, Any] = {"forget_quality": {"agg_value": 0.1}, "model_utility": {}}
    for prefix in ("forget", "retain", "ra", "wf"):
        facts = prefix in ("ra", "wf")
        document[f"{prefix}_Q_A_Prob"] = losses(draws)
        document[f"{prefix}_Q_A_PERT_Prob"] = losses(draws, 3 if facts else 5)
        if not facts:
            document[f"{prefix}_Q_A_PARA_Prob"] = losses(draws)
        rows: list[dict[str, Any]] = [
            {
                "rouge1_recall": draws.random(),
                "rougeL_f1": 0.0,
                "rougeL_recall": draws.random(),
                "input": "user q",
                "ground_truth": f"true {i}",
                "generation": f"answer {i}",
            }
            for i in range(N)
        ]
        document[f"{prefix}_Q_A_ROUGE"] = by_index(rows)
    return document


def write(folder: Path, document: dict[str, Any], name: str = "TOFU_EVAL.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def column(document: dict[str, Any], key: str, value: str = "avg_loss") -> list[Any]:
    table = document[key]["value_by_index"]
    return [table[str(i)][value] for i in range(N)]


def test_forget_quality_is_the_harness_own(tmp_path: Path) -> None:
    """Its formula, from its numbers: KS on 1 / (false / (true + 1e-10) + 1e-10)."""
    documents = [log(seed) for seed in (1, 2)]
    samples: list[Any] = []
    for document in documents:
        true = np.exp(-np.array(column(document, "forget_Q_A_PARA_Prob")))
        false = np.exp(-np.array(column(document, "forget_Q_A_PERT_Prob")).mean(axis=1))
        samples.append(1 / (false / (true + 1e-10) + 1e-10))
    unlearned, retain = (
        read_log(write(tmp_path, document, f"{i}.json")) for i, document in enumerate(documents)
    )
    found = summarize(unlearned, retain, OPEN_UNLEARNING)
    wanted: Any = ks_2samp(*samples)
    assert found["forget_quality"] == pytest.approx(wanted.pvalue, rel=1e-12)
    assert found["model_utility"] is not None


def test_a_retain_log_needs_the_forget_set_alone(tmp_path: Path) -> None:
    document = {
        k: v for k, v in log(1).items() if k.startswith(("forget_Q_A_PARA", "forget_Q_A_PERT"))
    }
    found = read_log(write(tmp_path, document))
    assert list(found.sets) == ["forget"]
    assert np.isnan(found.sets["forget"].answer_loss).all()
    unlearned = read_log(write(tmp_path, log(2), "other.json"))
    assert summarize(unlearned, found, OPEN_UNLEARNING)["forget_quality"] is not None


def test_a_log_without_texts_has_no_answers(tmp_path: Path) -> None:
    document = log(7)
    for row in document["forget_Q_A_ROUGE"]["value_by_index"].values():
        del row["generation"]
    found = read_log(write(tmp_path, document))
    assert found.sets["forget"].generated == ()
    assert summarize(found, None, OPEN_UNLEARNING)["repetition_forget"] is None
    assert found.sets["forget"].rouge_l_recall.mean() > 0
