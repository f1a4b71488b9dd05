"""Peak memory is what was needed beyond what was there, however short the peak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.bench.evaluation import peak
from unlearnbench.bench.evaluation_case import EvaluationBenchSettings
from unlearnbench.bench.peak_in_process import output_of, peak_of
from unlearnbench.errors import EvaluationError

from .. import forked

CPU = torch.device("cpu")
QUICK = EvaluationBenchSettings(
    size="quick", dtype="float32", states=("random",), data="synthetic", forget=0.5,
    profile="tofu", rows=1, quick=True,
)  # fmt: skip


def needs(floats: int) -> int | None:
    return peak_of(CPU, lambda: float(torch.ones(floats).sum()))


def test_a_short_peak_is_seen_and_what_was_there_before_is_not() -> None:
    kept = torch.ones(1 << 24)  # 64 MiB
    small = needs(1 << 10)
    if small is None:
        pytest.skip("this system has no VmHWM")
    assert 0 <= small < 1 << 24
    large = needs(1 << 24)
    assert large is not None
    assert large == pytest.approx(1 << 26, rel=0.1)
    assert kept[0] == 1


def test_a_way_is_measured_in_a_process_of_its_own(
    tmp_path: Path, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forked_output(_: str, module: str, *words: str) -> str:
        run = f"from runpy import run_module; run_module({module!r}, None, '__main__', True)"
        process = forked.start(run, words, output=tmp_path / "output")
        assert forked.wait([process]) == [0]
        return (tmp_path / "output").read_text()

    monkeypatch.setattr("unlearnbench.bench.peak_in_process.output_of", forked_output)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    # Rows of one question are short enough for the tiny context, whatever the profile allows.
    settings = replace(QUICK, quick=False, rows=1)
    found = peak(settings, tmp_path, "plain")
    assert found is None or 0 < found < 1 << 28


def test_a_process_that_fails_is_one_line() -> None:
    with pytest.raises(EvaluationError, match=r"^measuring it failed: .*No such file.*gone"):
        output_of("measuring it", "json.tool", "gone")
