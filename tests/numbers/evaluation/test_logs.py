"""TOFU's logs as they are read: order, texts, and rules that they do not name."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.config.profiles import OPEN_UNLEARNING, TOFU
from unlearnbench.evaluation.logs import FILES, read_log

N = 4


def log(texts: bool = True) -> dict[str, Any]:
    draws = np.random.default_rng(0)

    def by_index(values: Any) -> dict[str, Any]:
        # A merged log of several processes has its questions in no order.
        return dict([(str(i), value) for i, value in enumerate(values.tolist())][::-1])

    tables: dict[str, Any] = {
        key: by_index(draws.random(N))
        for key in ("avg_gt_loss", "avg_paraphrased_loss", "rouge1_recall", "rougeL_recall")
    }
    tables |= {
        "average_perturb_loss": by_index(draws.random((N, 5))),
        "num_token_gt": by_index(draws.integers(1, 9, N)),
        "num_token_paraphrased": by_index(draws.integers(1, 9, N)),
        "num_token_perturb": by_index(draws.integers(1, 9, (N, 5))),
    }
    if texts:
        rows = [[f"[INST] Who is {i}? [/INST]", f"said {i}", f"true {i}"] for i in range(N)]
        tables["generated_text"] = {str(i): row for i, row in enumerate(rows)}
    return dict.fromkeys(FILES.values(), tables)


def test_questions_are_put_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log.json"  # gzip is recognised under any name
    path.write_bytes(gzip.compress(json.dumps(log()).encode()))
    found = read_log(path)
    assert (found.profile, found.precision, [*found.sets]) == (TOFU.id, None, [*FILES])
    seen, tables = found.sets["forget"], log()["eval_log_forget.json"]
    assert seen.questions == tuple(f"Who is {i}?" for i in range(N))
    assert (seen.generated[3], seen.references[3]) == ("said 3", "true 3")
    for key, column in (
        ("avg_gt_loss", seen.answer_loss),
        ("average_perturb_loss", seen.perturbed_loss),
        ("num_token_perturb", seen.perturbed_tokens),
    ):
        assert column.tolist() == [tables[key][str(i)] for i in range(N)]


def test_rules_are_those_in_the_log_or_those_given(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log(texts=False)))
    assert read_log(path, profile=OPEN_UNLEARNING).profile == OPEN_UNLEARNING.id
    assert read_log(path).sets["forget"].questions == ()
    named = {"profile": OPEN_UNLEARNING.id, "precision": "bfloat16"}
    path.write_text(json.dumps({file: tables | named for file, tables in log().items()}))
    found = read_log(path)
    assert (found.profile, found.precision) == (OPEN_UNLEARNING.id, "bfloat16")
