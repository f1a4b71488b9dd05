"""open-unlearning's logs: losses and answers of each set, Forget Quality between two of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp

from unlearnbench.api.observations import AnswerTokens, Evaluation, SetEvaluation
from unlearnbench.config.profiles import OPEN_UNLEARNING, TOFU
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.summary import summarize
from unlearnbench.evaluation.tofu_log import read_log, write_log

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


def test_every_set_is_read(tmp_path: Path) -> None:
    document = log(0)
    found = read_log(write(tmp_path, document))
    assert found.profile == OPEN_UNLEARNING.id
    assert set(found.sets) == {"retain", "forget", "real_authors", "world_facts"}
    forget, facts = found.sets["forget"], found.sets["real_authors"]
    assert forget.answer_loss.tolist() == column(document, "forget_Q_A_Prob")
    assert forget.base_loss.tolist() == column(document, "forget_Q_A_PARA_Prob")
    assert forget.perturbed_loss.tolist() == column(document, "forget_Q_A_PERT_Prob")
    assert forget.generated[11] == "answer 11"
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


def observed(draws: np.random.Generator, **more: Any) -> SetEvaluation:
    """N answers of four tokens and EOS, with their log-probabilities' moments."""
    loss = draws.random(5 * N).astype(np.float32)
    tokens = AnswerTokens(
        lengths=np.full(N, 5),
        ended=np.full(N, True),
        loss=loss,
        hit=draws.random(5 * N) < 0.8,
        tied=np.full(5 * N, False),
        mean_logprob=-loss - 1,
        logprob_variance=loss + 1,
    )
    known: dict[str, Any] = {
        "questions": tuple(f"q {i}" for i in range(N)),
        "generated": (),
        "references": tuple(f"true {i}" * i for i in range(N)),
        "answer_loss": loss.reshape(N, 5).mean(axis=1).astype(np.float64),
        "answer_tokens": tokens.lengths,
        "base_loss": draws.random(N),
        "base_tokens": tokens.lengths,
        "perturbed_loss": draws.random((N, 5)),
        "perturbed_tokens": np.full((N, 5), 5),
        "rouge1_recall": draws.random(N),
        "rouge_l_recall": draws.random(N),
        "token_columns": tokens,
    }
    return SetEvaluation(**{**known, **more})


def evaluated(seed: int) -> Evaluation:
    """An evaluation of ours, by token and with holdout rows."""
    draws = np.random.default_rng(seed)
    names = ("retain", "forget", "real_authors", "world_facts", "holdout")
    sets = {name: observed(draws) for name in names}
    for name in ("real_authors", "world_facts"):  # their truth ratio is about the answer
        sets[name] = replace(sets[name], base_loss=sets[name].answer_loss)
    generated = tuple(f"true true {i}" for i in range(N))
    sets["forget"] = replace(sets["forget"], generated=generated)
    return Evaluation(OPEN_UNLEARNING.id, sets)


def test_a_written_log_has_memorization_and_attacks_and_reads_as_the_same(tmp_path: Path) -> None:
    own, retain = evaluated(4), evaluated(5)
    write_log(own, tmp_path / "own.json", layout="open-unlearning", retain=retain)
    write_log(retain, tmp_path / "retain.json", layout="open-unlearning")
    again, retain_again = (read_log(tmp_path / f"{name}.json") for name in ("own", "retain"))
    expected = summarize(own, retain, OPEN_UNLEARNING)
    found = summarize(again, retain_again, OPEN_UNLEARNING)
    stated = ("exact_memorization_forget", "extraction_strength_ou_forget", "privleak", "private")
    attacks = ("mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus", "mia_reference")
    for name in (*stated, *attacks, "model_utility", "log10_forget_quality"):
        assert expected[name] is not None
        assert found[name] == pytest.approx(expected[name], abs=1e-12), name
    ours = json.loads((tmp_path / "own.json").read_text())
    assert ours["privleak"]["agg_value"] == expected["privleak"]
    assert ours["forget_quality"]["agg_value"] == expected["forget_quality"]
    for attack in attacks:
        groups = ours[attack]
        assert groups["agg_value"] == groups["auc"] == expected[attack]
        for group in ("forget", "holdout"):
            scores = [row["score"] for row in groups[group]["value_by_index"].values()]
            assert groups[group]["agg_value"] == pytest.approx(np.mean(scores))
    written = column(ours, "exact_memorization", "score")
    assert ours["exact_memorization"]["agg_value"] == pytest.approx(np.mean(written))
    assert min(column(ours, "extraction_strength", "score")) >= 1 / 4, "with its floor"
    # "true i" in "true true i": recall 1, precision 2/3.
    assert column(ours, "forget_Q_A_ROUGE", "rougeL_f1")[1] == pytest.approx(0.8)
    # Without a retain model there is nothing to be relative to.
    alone = json.loads((tmp_path / "retain.json").read_text())
    assert not {"privleak", "forget_quality", "mia_reference"} & alone.keys()
    write_log(again, tmp_path / "again.json", layout="open-unlearning", retain=retain_again)
    assert json.loads((tmp_path / "again.json").read_text()).keys() == ours.keys()


def test_scores_of_other_attacks_are_kept(tmp_path: Path) -> None:
    document = log(6)
    for attack, n in (("mia_gradnorm", 3), ("mia_loss", 3)):
        rows = by_index([{"score": float(i)} for i in range(N)])
        document[attack] = {"forget": rows, "holdout": by_index([{"score": 9.0}] * n), "auc": 1.0}
    found = read_log(write(tmp_path, document))
    write_log(found, tmp_path / "ours.json", layout="open-unlearning")
    ours = json.loads((tmp_path / "ours.json").read_text())
    # Scores 0 to 8 lie below 9, score 9 equals it, and two lie above.
    assert ours["mia_gradnorm"]["auc"] == pytest.approx((9 + 0.5) / N)
    assert len(ours["mia_gradnorm"]["holdout"]["value_by_index"]) == 3


def test_a_log_without_texts_has_no_answers(tmp_path: Path) -> None:
    document = log(7)
    for row in document["forget_Q_A_ROUGE"]["value_by_index"].values():
        del row["generation"]
    found = read_log(write(tmp_path, document))
    assert found.sets["forget"].generated == ()
    assert summarize(found, None, OPEN_UNLEARNING)["repetition_forget"] is None
    assert found.sets["forget"].rouge_l_recall.mean() > 0


def test_a_written_log_has_its_metrics_and_is_read_again(tmp_path: Path) -> None:
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
        ("forget_Q_A_PERT_Prob", by_index([{"avg_loss": 1.0}] * N), "equally many perturbed"),
        (
            "forget_Q_A_Prob",
            by_index([{"avg_loss": None}] * N),
            "avg_loss: expected numbers, got None",
        ),
        ("retain_Q_A_Prob", {"value_by_index": {"a": {}}}, "with indices 0, 1"),
        (
            "retain_Q_A_ROUGE",
            by_index([{"rouge1_recall": 1.0}] * N),
            "rougeL_recall: expected numbers, got ",
        ),
        ("ra_Q_A_Prob", {"value_by_index": {"0": None}}, "a question without values"),
    ],
)
def test_an_incomplete_log_is_an_error_of_one_line(
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
