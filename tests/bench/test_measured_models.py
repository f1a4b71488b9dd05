"""The models of a benchmark: made once, kept in a folder, never mixed with those of another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.bench.evaluation_case import EvaluationBenchSettings
from unlearnbench.bench.measured_models import ARCHITECTURES, MeasuredModels
from unlearnbench.errors import EvaluationError
from unlearnbench.models.tiny import build_model

QUICK = EvaluationBenchSettings(
    size="quick", dtype="float32", states=("random",), data="synthetic", forget=0.5,
    profile="tofu", rows=2, quick=True,
)  # fmt: skip


def made(settings: EvaluationBenchSettings, folder: Path) -> tuple[MeasuredModels, list[str]]:
    lines: list[str] = []
    models = MeasuredModels(settings, settings.sets(), folder, lines.append)
    models.check()
    return models, lines


def test_each_state_follows_from_the_one_before_and_is_made_once(tmp_path: Path) -> None:
    models, lines = made(QUICK, tmp_path)
    weights = {
        state: models.load(state)[0].get_input_embeddings().weight
        for state in ("unlearned", "random", "memorised")
    }
    assert sum("training the quick model" in line for line in lines) == 1
    assert sum("unlearning" in line for line in lines) == 1
    assert not torch.equal(weights["random"], weights["memorised"])
    assert not torch.equal(weights["unlearned"], weights["memorised"])

    first = models.load("memorised")[0].state_dict()
    again, lines = made(QUICK, tmp_path)
    for key, value in again.load("memorised")[0].state_dict().items():
        torch.testing.assert_close(value, first[key])
    assert not lines


@pytest.mark.parametrize(
    ("change", "named"),
    [({"rows": 1}, "content, questions"), ({"dtype": "bfloat16"}, "dtype")],
)
def test_models_of_other_settings_are_refused(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    made(QUICK, tmp_path)
    with pytest.raises(EvaluationError, match=rf"prepared from something else \(other {named}\)"):
        made(replace(QUICK, **change), tmp_path)


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(EvaluationError, match=r"settings\.json: cannot be used for prepared"):
        made(QUICK, tmp_path)
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(EvaluationError, match=r"something else \(other content, dtype, questions,"):
        made(QUICK, tmp_path)


def test_sizes_are_what_they_are_called() -> None:
    class Full(list[int]):
        """Random text with as many words as the vocabulary of the size."""

        bos_token_id, eos_token_id, pad_token_id = 1, 2, 0

    for size, least, most in (("tiny", 3.3e6, 3.5e6), ("1b", 1.0e9, 1.2e9)):
        shape = ARCHITECTURES[size]
        with torch.device("meta"):
            tokens: Any = Full([0] * shape.vocabulary)
            model: Any = build_model(shape, tokens, seed=0)
        assert least < sum(p.numel() for p in model.parameters()) < most


def test_settings_from_the_command_line() -> None:
    plain = EvaluationBenchSettings.from_options(rows=7, data="some/folder")
    assert (plain.size, plain.rows, plain.states) == (
        "tiny", 7, ("memorised", "unlearned", "random"),
    )  # fmt: skip
    assert EvaluationBenchSettings.from_options().rules().id == "tofu@2923316c"
    large = EvaluationBenchSettings.from_options(size="1b")
    assert large.states == ("random",)
    with pytest.raises(EvaluationError, match="--size 1b: the large model is not trained here"):
        EvaluationBenchSettings.from_options(size="1b", states=["memorised"])
    quick = EvaluationBenchSettings.from_options(quick=True, states=["random", "random"])
    assert (quick.size, quick.states, quick.rules().rows) == ("quick", ("random",), 4)
