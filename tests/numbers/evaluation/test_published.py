"""Logs of TOFU and numbers of the CE-U paper, against plain formulas and each other."""

import csv
import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import hmean, ks_2samp

from unlearnbench.api.profile import Profile
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.profiles import TOFU, TOFU_PAPER
from unlearnbench.evaluation.logs import FILES, read_log
from unlearnbench.evaluation.summary import summarize
from unlearnbench.stats.harmonic_mean import harmonic_mean

LOGS = [f"{model}_{kind}" for model in ("llama2-7b", "phi") for kind in
        ("full", "retain90", "retain95", "retain99")]  # fmt: skip


def plain_numbers(path: Path, mean: str) -> dict[str, float]:
    """The nine and the three by the plainest formulas, from the file itself."""
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    numbers: dict[str, float] = {}
    for name, file in FILES.items():
        ratios: list[float] = []
        probabilities: list[float] = []
        table = document[file]
        for i in table["avg_gt_loss"]:
            wrong = [math.exp(-loss) for loss in table["average_perturb_loss"][i]]
            false = sum(wrong) / len(wrong)
            if mean == "geometric":
                false = math.prod(wrong) ** (1 / len(wrong))
            true = math.exp(-table["avg_paraphrased_loss"][i])
            ratios.append(
                min(true / false, false / true) if name == "forget" else max(0, 1 - false / true)
            )
            answer = math.exp(-table["avg_gt_loss"][i])
            options = 1 if name in ("retain", "forget") else answer + sum(wrong)
            probabilities.append(answer / options)
        recalls = list(table["rougeL_recall"].values())
        numbers[f"rouge_{name}"] = math.fsum(recalls) / len(recalls)
        numbers[f"probability_{name}"] = math.fsum(probabilities) / len(probabilities)
        numbers[f"truth_ratio_{name}"] = math.fsum(ratios) / len(ratios)
    nine = [value for key, value in numbers.items() if not key.endswith("forget")]
    return numbers | {"model_utility": float(hmean(nine))}


@pytest.mark.parametrize("profile", [TOFU, TOFU_PAPER], ids=lambda p: p.name)
@pytest.mark.parametrize("log", LOGS)
def test_published_logs_by_plain_formulas(
    eval_logs_folder: Path, log: str, profile: Profile
) -> None:
    path = eval_logs_folder / f"{log}.json.gz"
    summary = summarize(read_log(path, profile=profile), None, profile)
    expected = plain_numbers(path, profile.perturbed_mean)
    assert {key: summary[key] for key in expected} == pytest.approx(expected, rel=1e-12)


# Recomputed from the logs with scipy; the CE-U paper plots the same to three digits.
@pytest.mark.parametrize(
    ("log", "geometric", "arithmetic"),
    [
        ("llama2-7b_full", 0.6227, 0.5859),
        ("llama2-7b_retain99", 0.6207, 0.5812),
        ("llama2-7b_retain95", 0.6006, 0.5613),
        ("llama2-7b_retain90", 0.6137, 0.5752),
        ("phi_full", 0.5221, 0.5034),
        ("phi_retain99", 0.5186, 0.4986),
        ("phi_retain95", 0.5250, 0.5070),
        ("phi_retain90", 0.5320, 0.5130),
    ],
)
def test_published_model_utility(
    eval_logs_folder: Path, log: str, geometric: float, arithmetic: float
) -> None:
    path = eval_logs_folder / f"{log}.json.gz"
    for profile, expected in ((TOFU, geometric), (TOFU_PAPER, arithmetic)):
        utility = summarize(read_log(path, profile=profile), None, profile)["model_utility"]
        assert utility is not None
        assert round(utility, 4) == expected


@pytest.mark.parametrize(("model", "log10"), [("llama2-7b", -20.7366), ("phi", -15.6587)])
def test_published_forget_quality(eval_logs_folder: Path, model: str, log10: float) -> None:
    logs = [read_log(eval_logs_folder / f"{model}_{kind}.json.gz") for kind in ("full", "retain90")]
    summary = summarize(logs[0], logs[1], TOFU)
    ratios = [
        np.exp(log.sets["forget"].perturbed_loss.mean(axis=1) - log.sets["forget"].base_loss)
        for log in logs
    ]
    test = ks_2samp(*ratios)
    assert summary["log10_forget_quality"] == pytest.approx(log10, abs=5e-5)
    assert summary["log10_forget_quality"] == pytest.approx(math.log10(test.pvalue), rel=1e-12)
    assert summary["forget_quality"] == pytest.approx(test.pvalue, rel=1e-12)
    assert summary["ks_statistic"] == test.statistic
    assert summary["ks_n"] == 300


def test_published_logs_of_other_splits_do_not_compare(eval_logs_folder: Path) -> None:
    full, retain95 = (
        read_log(eval_logs_folder / f"phi_{kind}.json.gz") for kind in ("full", "retain95")
    )
    with pytest.raises(EvaluationError, match="300 forget questions and the retain model 200"):
        summarize(full, retain95, TOFU)


def test_the_papers_tables_give_their_model_utility() -> None:
    # Yang 2025, arXiv:2503.01224 (CE-U): 90 columns, each a model, fraction, rate and epoch.
    path = Path(__file__).parents[3] / "dashboards" / "figures" / "published" / "ceu_tables.csv"
    columns: dict[tuple[str, str, str, str], dict[str, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            place = (row["model"], row["forget_fraction"], row["learning_rate"], row["epoch"])
            columns.setdefault(place, {})[row["metric"]] = float(row["value"])
    assert len(columns) == 90
    for place, values in columns.items():
        nine = [
            values[f"{metric} {name}"]
            for metric in ("ROUGE", "Prob.", "Truth Ratio")
            for name in ("Retain", "Real Authors", "Real World")
        ]
        assert harmonic_mean(nine) == pytest.approx(values["Model Utility"], abs=1e-9), place
