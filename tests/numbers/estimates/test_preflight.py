"""Runs that do not fit a GPU are refused before anything is loaded."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from unlearnbench.base.errors import TrainingError, is_deterministic
from unlearnbench.cli.main import main
from unlearnbench.config.loader import load_config
from unlearnbench.config.resources import Resources
from unlearnbench.results.run_estimate import Estimate, Rates, check_plan, check_run, estimate_plan
from unlearnbench.runs.plan_sweep import plan_sweep

GB = 10**9


@pytest.fixture(scope="module")
def seven_billion(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """The folder of a model of almost 7B weights, of which only the config is there.

    Few layers, and wide ones: counting takes time by the layer.
    """
    from transformers import LlamaConfig

    folder = tmp_path_factory.mktemp("models") / "7b"
    LlamaConfig(
        vocab_size=32000,
        hidden_size=11264,
        intermediate_size=39424,
        num_hidden_layers=3,
        num_attention_heads=88,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of 80 GB, as torch describes it."""
    with suppress(ImportError):  # it looks for its device once, when it is imported
        import_module("bitsandbytes")
    properties = SimpleNamespace(total_memory=80 * GB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", Mock(return_value=properties))


def changes(model: Path, output: Path) -> list[str]:
    """The 7B preset on what is here and on one GPU, with two of its methods."""
    return [
        "resources.gpu=1",
        f"models.0.base={model}",
        f"models.0.fine_tuned={model}",
        "models.0.retain={}",
        "models.0.template=plain",
        "data={source: synthetic, authors: 4}",
        "forget_fractions=[0.25]",
        "methods=[ce-u, gradient-difference]",
        "epochs=1",
        "training.batch_size=8",
        "training.schedule=constant",
        f"output={output}",
    ]


def arguments(sets: list[str]) -> list[str]:
    return [word for one in sets for word in ("--set", one)]


@pytest.mark.usefixtures("gpu")
def test_large_plans_are_refused_before_loading(
    seven_billion: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it was begun")

    monkeypatch.setattr("ray.init", never)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", never)
    asked = changes(seven_billion, tmp_path)
    assert main(["sweep", "tofu_llama2_7b", *arguments(asked)]) == 2
    (line,) = [text for text in capsys.readouterr().err.splitlines() if "does not fit" in text]
    assert "Llama-2-7B-chat does not fit its GPU with ce-u, gradient-difference: an" in line
    assert "of 74.5 GiB, of which 94% can be used" in line
    assert not (tmp_path / "tofu_llama2_7b").exists(), "nothing is written"
    assert main(["run", "tofu_llama2_7b", "--select", "0", *arguments(asked)]) == 2
    assert "does not fit its GPU with ce-u: an" in capsys.readouterr().err


@pytest.mark.usefixtures("gpu")
def test_workers_check_their_own_device(seven_billion: Path, tmp_path: Path) -> None:
    config = load_config("tofu_llama2_7b", changes(seven_billion, tmp_path))
    plan, benchmark = plan_sweep(config)
    with pytest.raises(TrainingError, match="does not fit its GPU") as caught:
        check_run(plan.runs[0], config, benchmark)
    assert is_deterministic(caught.value), "another try would be refused, too"
    cpu = config.model_copy(update={"resources": Resources()})
    check_run(plan.runs[0], cpu, benchmark)
    assert check_plan(plan, benchmark, None) == []
    assert check_plan(plan, benchmark, 160 * GB) == []


@pytest.mark.usefixtures("gpu")
def test_unknown_shapes_do_not_refuse_runs(
    seven_billion: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    sets = [*changes(seven_billion, tmp_path), "models.0.fine_tuned=nobody/nothing@main"]
    config = load_config("tofu_llama2_7b", sets)
    plan, benchmark = plan_sweep(config)
    (line,) = check_plan(plan, benchmark, 80 * GB)
    assert "cannot check that runs fit into memory: Llama-2-7B-chat: nobody/nothing" in line
    check_run(plan.runs[0], config, benchmark)


def test_the_presets_of_seven_billion_fit_their_gpus(tokenizer: Any, tmp_path: Path) -> None:
    """On GPUs of 80 GB, with the largest of their methods.

    One shape is counted, which takes seconds: it is the real one, that the presets' figures are of.
    """
    from transformers import LlamaConfig

    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "7b")
    tokenizer.save_pretrained(tmp_path / "7b")

    def one(preset: str, *more: str) -> Estimate:
        sets = [
            *(f"models.0.{key}={tmp_path / '7b'}" for key in ("base", "fine_tuned")),
            "models.0.retain={}",
            "data={source: synthetic, authors: 40}",
            "forget_fractions=[0.25]",
            "methods=[kl-minimization]",
            *more,
        ]
        ((found,), unknown) = estimate_plan(
            *plan_sweep(load_config(preset, sets)), Rates(1.0), 80 * GB
        )
        assert not unknown
        return found

    two, single = one("tofu_llama2_7b"), one("tofu_llama2_7b_one_gpu")
    assert two.fits
    assert (two.resources.gpu, two.setup.items) == (2, 16), "its half of a batch, at a time"
    assert 45 < two.memory.peak / 2**30 < 0.94 * 80e9 / 2**30
    assert single.fits
    assert (single.resources.gpu, single.setup.items) == (1, 32)
    states = 2 * 6.74e9
    assert single.memory.peak + states < 0.94 * 80e9, "nor need AdamW's values leave the GPU"
    assert not one("tofu_llama2_7b", "resources.gpu=1").fits
