"""Observations written, read back, damaged, and as small as promised."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.observations import AnswerTokens, Evaluation, SetEvaluation
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.observation_file import read_observations, write_observations


def made(n: int, tokens: int = 40, perturbed: int = 5, text: str = "ß word ") -> SetEvaluation:
    rng = np.random.default_rng(n)
    count = n * tokens
    columns = AnswerTokens(
        lengths=np.full(n, tokens),
        ended=np.ones(n, dtype=bool),
        loss=rng.random(count).astype(np.float32),
        hit=rng.random(count) < 0.7,
        tied=rng.random(count) < 0.01,
        mean_logprob=-rng.random(count).astype(np.float32),
        logprob_variance=rng.random(count).astype(np.float32),
    )
    words = [" ".join(f"{text}{k}" for k in rng.integers(0, 5000, 25)) for _ in range(n)]
    return SetEvaluation(
        questions=tuple(f"question {i}?" for i in range(n)),
        generated=tuple(words),
        references=tuple(reversed(words)),
        answer_loss=rng.random(n),
        answer_tokens=np.full(n, tokens),
        base_loss=rng.random(n),
        base_tokens=np.full(n, tokens),
        perturbed_loss=rng.random((n, perturbed)),
        perturbed_tokens=np.full((n, perturbed), tokens),
        rouge1_recall=rng.random(n),
        rouge_l_recall=np.full(n, np.nan),
        token_columns=columns,
        values={"mia_loss": rng.random(n)},
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, SetEvaluation | AnswerTokens):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(
            one, other, equal_nan=one.dtype.kind == "f"
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    scores_only = replace(made(2), generated=(), questions=(), token_columns=None, values={})
    odd = made(3, text="ß\ud800 \u2028")
    evaluation = Evaluation(TOFU.id, {"retain": odd, "forget": scores_only}, precision="float32")
    path = tmp_path / "epoch-1.safetensors"
    write_observations(evaluation, path)
    found = read_observations(path)
    assert (found.profile, found.precision) == (TOFU.id, "float32")
    assert list(found.sets) == ["retain", "forget"]
    assert all(same(one, found.sets[name]) for name, one in evaluation.sets.items())
    again = tmp_path / "again.safetensors"
    write_observations(found, again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "packed"])
def test_a_damaged_file_is_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "epoch-1.safetensors"
    seen = made(3)
    write_observations(Evaluation(TOFU.id, {"forget": seen}), path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "packed":
        content = path.read_bytes()
        begin = content.index(b"\x1f\x8b\x08") + 20
        path.write_bytes(content[:begin] + b"\xff" * 9 + content[begin + 9 :])
    elif damage == "missing":
        path.unlink()
    with pytest.raises(EvaluationError, match=r"epoch-1\.safetensors: .*observations") as caught:
        read_observations(path)
    assert "\n" not in str(caught.value)
