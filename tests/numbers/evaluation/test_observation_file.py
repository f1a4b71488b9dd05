"""Observations written, read back, damaged, and as small as promised."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.metric import EXTRA
from unlearnbench.api.observations import AnswerTokens, Evaluation, Samples, SetEvaluation
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.evaluation.observation_file import read_observations, write_observations


def same(one: Any, other: Any) -> bool:
    if isinstance(one, SetEvaluation | AnswerTokens | Samples):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(
            one, other, equal_nan=one.dtype.kind == "f"
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    less: Any = dict.fromkeys({"token_columns", "samples", *EXTRA})
    scores_only = replace(made_up_set(n=2), generated=(), questions=(), **less)
    odd = replace(made_up_set(n=3), generated=("ß\ud800 \u2028",) * 3)
    odd = replace(odd, values={"mia_loss": np.random.default_rng(1).random(3)})
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
    seen = made_up_set(n=3)
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
