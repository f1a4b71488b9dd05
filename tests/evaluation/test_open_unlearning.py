"""open-unlearning's logs: losses and answers of each set, Forget Quality between two of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp

from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.log import read_log, write_log
from unlearnbench.evaluation.metrics import summarize
from unlearnbench.evaluation.profiles import OPEN_UNLEARNING, TOFU

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
                "generation": f"said {i}",
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


def test_every_set_is_read(tmp_path: Path) -> None:
    document = log(0)
    found = read_log(write(tmp_path, document))
    assert found.profile == OPEN_UNLEARNING.id
    assert set(found.sets) == {"retain", "forget", "real_authors", "world_facts"}
    forget, facts = found.sets["forget"], found.sets["real_authors"]
    assert forget.answer_loss.tolist() == column(document, "forget_Q_A_Prob")
    assert forget.base_loss.tolist() == column(document, "forget_Q_A_PARA_Prob")
    assert forget.perturbed_loss.tolist() == column(document, "forget_Q_A_PERT_Prob")
    assert forget.generated[11] == "said 11"
    assert forget.references[2] == "true 2"
    recalls = column(document, "forget_Q_A_ROUGE", "rougeL_recall")
    assert forget.rouge_l_recall.tolist() == recalls
    assert facts.base_loss.tolist() == column(document, "ra_Q_A_Prob")
    assert facts.perturbed_loss.shape == (N, 3)


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


def test_its_numbers_do_not_compare_with_tofus(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="numbers of different profiles do not compare"):
        summarize(read_log(write(tmp_path, log(0))), None, TOFU)


def test_what_is_written_has_its_metrics_and_is_read_again(tmp_path: Path) -> None:
    document = log(3)
    found = read_log(write(tmp_path, document))
    sets = {
        name: replace(rows, questions=tuple(f"q {i}" for i in range(N)))
        for name, rows in found.sets.items()
    }
    write_log(replace(found, sets=sets), tmp_path / "ours.json", layout="open-unlearning")
    ours = json.loads((tmp_path / "ours.json").read_text())
    written = {key for key in ours if key.endswith(("_Prob", "_ROUGE"))}
    assert written == {key for key in document if key.endswith(("_Prob", "_ROUGE"))}
    for key in written - {f"{prefix}_Q_A_ROUGE" for prefix in ("forget", "retain", "ra", "wf")}:
        assert column(ours, key) == column(document, key)
        probabilities = np.array(column(document, key, "prob"))
        assert ours[key]["agg_value"] == pytest.approx(probabilities.mean())
        np.testing.assert_allclose(column(ours, key, "prob"), probabilities)
    # Its formula of the truth ratio, whose scores its Forget Quality compares.
    true = np.exp(-np.array(column(document, "forget_Q_A_PARA_Prob")))
    false = np.exp(-np.array(column(document, "forget_Q_A_PERT_Prob")).mean(axis=1))
    scores = np.array(column(ours, "forget_truth_ratio", "score"))
    np.testing.assert_allclose(scores, false / (true + 1e-10), rtol=1e-12)
    closer = np.minimum(scores, 1 / (scores + 1e-10)).mean()
    assert ours["forget_truth_ratio"]["agg_value"] == pytest.approx(closer, rel=1e-9)
    again = read_log(tmp_path / "ours.json")
    expected = summarize(found, None, OPEN_UNLEARNING)
    assert summarize(again, None, OPEN_UNLEARNING) == expected
    assert ours["model_utility"]["agg_value"] == expected["model_utility"]


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("forget_Q_A_PERT_Prob", None, "no 'forget_Q_A_PERT_Prob' in it; Forget Quality needs"),
        ("forget_Q_A_PARA_Prob", {"agg_value": 1.0}, "forget_Q_A_PARA_Prob: no value_by_index"),
        ("forget_Q_A_PARA_Prob", by_index([{"avg_loss": 1.0}]), "1 questions, where 12"),
        ("forget_Q_A_PERT_Prob", by_index([{"avg_loss": 1.0}] * N), "equally many values"),
        (
            "forget_Q_A_Prob",
            by_index([{"avg_loss": None}] * N),
            "'avg_loss': expected numbers, got None",
        ),
        ("retain_Q_A_Prob", {"value_by_index": {"a": {}}}, "expected indices 0, 1"),
        (
            "retain_Q_A_ROUGE",
            by_index([{"rouge1_recall": 1.0}] * N),
            "'rougeL_recall': expected numbers, got ",
        ),
        ("ra_Q_A_Prob", {"value_by_index": {"0": None}}, "a question without values"),
    ],
)
def test_what_is_incomplete_is_said_in_one_line(
    tmp_path: Path, key: str, change: Any, message: str
) -> None:
    document = log(0)
    if change is None:
        del document[key]
    else:
        document[key] = change
    path = write(tmp_path, document)
    with pytest.raises(EvaluationError, match=message) as caught:
        read_log(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
