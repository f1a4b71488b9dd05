"""open-unlearning's own logs: from their numbers per question come the numbers that they sum up.

The logs are of `open-unlearning/tofu_Llama-3.2-1B-Instruct_{full,retain99,retain95,retain90}`, made
with locuslab/open-unlearning@d3d7cf9 (hub dataset open-unlearning/eval).
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.anchors import LOG_TOLERANCE, check_anchor, find_anchor
from unlearnbench.api.metric import EvaluatedModel, MetricInputs
from unlearnbench.config.profiles import OPEN_UNLEARNING
from unlearnbench.evaluation.logs import read_log
from unlearnbench.evaluation.summary import summarize
from unlearnbench.metrics.privleak import PrivLeak
from unlearnbench.stats.text_overlap import rouge_l_f1

SPLITS = (("forget01", "retain99"), ("forget05", "retain95"), ("forget10", "retain90"))
COLUMNS = {
    "model_utility": "model_utility",
    "exact_memorization": "exact_memorization_forget",
    "extraction_strength": "extraction_strength_ou_forget",
    "forget_truth_ratio": "truth_ratio_forget",
    "forget_Q_A_Prob": "probability_forget",
    "forget_Q_A_ROUGE": "rouge_forget",
    "forget_Q_A_PARA_Prob": "paraphrased_probability_forget",
    "retain_Truth_Ratio": "truth_ratio_retain",
    "retain_Q_A_Prob": "probability_retain",
    "retain_Q_A_ROUGE": "rouge_retain",
    "ra_Truth_Ratio": "truth_ratio_real_authors",
    "ra_Q_A_Prob_normalised": "probability_real_authors",
    "ra_Q_A_ROUGE": "rouge_real_authors",
    "wf_Truth_Ratio": "truth_ratio_world_facts",
    "wf_Q_A_Prob_normalised": "probability_world_facts",
    "wf_Q_A_ROUGE": "rouge_world_facts",
    "mia_loss": "mia_loss",
    "mia_zlib": "mia_zlib",
    "mia_min_k": "mia_min_k",
    "mia_min_k_plus_plus": "mia_min_k_plus_plus",
}
"""Our column of each metric that a log sums up."""


def published(path: Path) -> dict[str, float | None]:
    """Metrics as a log states them."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    return {name: table["agg_value"] for name, table in document.items()}


def privleak(area: float | None, target: float | None) -> Any:
    """privleak of a model with one area under the curve against another."""
    model, retain = (EvaluatedModel({}, {"mia_min_k": one}) for one in (area, target))
    return PrivLeak().compute(MetricInputs(model, retain))["privleak"]


def check(folder: Path, full: str, retain: str, ending: str) -> None:
    """Compare both logs with what they say, and with the table of published numbers."""
    paths = {name: folder / ending.format(name) for name in (full, retain)}
    start, retained = (read_log(path) for path in paths.values())
    chosen: dict[str, dict[str, float]] = {"mia-grad-norm": {}}
    values = summarize(start, retained, OPEN_UNLEARNING, chosen=chosen)
    alone = summarize(retained, None, OPEN_UNLEARNING, chosen=chosen)
    for name, found in ((full, values), (retain, alone)):
        stated = published(paths[name])
        for key, column in COLUMNS.items():
            assert found[column] == pytest.approx(stated[key], abs=LOG_TOLERANCE), (name, key)
    stated = published(paths[full])
    assert values["forget_quality"] == pytest.approx(stated["forget_quality"], rel=1e-6)
    assert values["privleak"] == pytest.approx(stated["privleak"], abs=1e-6)
    assert values["mia_reference"] == pytest.approx(stated["mia_reference"], abs=1e-6)
    for name, found in ((full, values), (retain, alone)):
        gradnorm = published(paths[name])["mia_gradnorm"]
        assert found["mia_grad_norm"] == pytest.approx(gradnorm, abs=1e-6), name
    # Without a retain log, open-unlearning takes an area of ½; we have no number.
    assert alone["privleak"] is alone["forget_quality"] is None
    stated = published(paths[retain])
    assert privleak(alone["mia_min_k"], 0.5) == pytest.approx(stated["privleak"], abs=1e-6)
    split = full.removeprefix("full_")
    for name, found in ((f"full-{split}", values), (retain, alone)):
        anchor = find_anchor(f"llama-3.2-1b-{name}")
        checks = check_anchor(anchor, found, LOG_TOLERANCE)
        assert {one.metric: one.verdict for one in checks if one.verdict != "ok"} == {}


@pytest.mark.parametrize(("split", "retain"), SPLITS)
def test_the_logs_give_their_own_numbers(
    open_unlearning_logs: Path, split: str, retain: str
) -> None:
    check(open_unlearning_logs, f"full_{split}", retain, "Llama-3.2-1B-Instruct_{}.json.gz")


def test_the_numbers_of_one_split_are_enough(open_unlearning_numbers: Path) -> None:
    """The same without the folder of logs."""
    check(open_unlearning_numbers, "full_forget01", "retain99", "{}.json.gz")


def test_f1_of_the_answers_is_the_logged_one(open_unlearning_logs: Path) -> None:
    log = read_log(open_unlearning_logs / "Llama-3.2-1B-Instruct_full_forget01.json.gz")
    facts = log.sets["world_facts"]
    found = rouge_l_f1(facts.references, facts.generated)
    np.testing.assert_allclose(found, facts.values["rouge_l_f1"], atol=1e-12)
