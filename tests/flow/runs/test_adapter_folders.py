"""Sweeps of adapter folders and of LoRA with named layers: plan, runs, export, track."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.factories.marks import with_mlflow
from unlearnbench.cli.main import main
from unlearnbench.config.schema import LoRA, ModelSettings, SweepConfig
from unlearnbench.results.records import Record, read_records
from unlearnbench.results.sweep_folder import claim_folder
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.remade_model import stored_dtype
from unlearnbench.runs.run import run_single
from unlearnbench.runs.workspace import workspace

from ..small_run import config_of

peft: Any = pytest.importorskip("peft")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model of a benchmark, with its tokenizer."""
    place = tmp_path_factory.mktemp("base")
    config = config_of(place)
    space = workspace(config, place / "runs" / "small")
    space.preparer("tiny").prepare("base")
    return Path(space.models("tiny").base().place)


def save_adapter(base: Path, to: Path, seed: int) -> Path:
    from transformers import AutoModelForCausalLM

    config = peft.LoraConfig(r=2, task_type="CAUSAL_LM", target_modules=["q_proj", "down_proj"])
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.1, generator=generator)
    model.save_pretrained(to)
    return to


def save_merged(base: Path, adapter: Path, to: Path) -> Path:
    """The same model as a whole folder, merged by plain PEFT."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    peft.PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(to)
    for file in base.glob("tokenizer*"):
        shutil.copy(file, to)
    return to


def swept(config: SweepConfig) -> Path:
    """The folder of a sweep, with its plan and the records of its runs."""
    plan, _ = plan_sweep(config)
    folder = claim_folder(plan)
    for run in plan.runs:
        run_single(run, config, folder, lambda _: None)
    return folder


def of_folders(place: Path, **models: Any) -> SweepConfig:
    """A sweep of the model with these folders, prepared as the tiny one."""
    config = config_of(place, epochs=1)
    (tiny,) = config.models
    fields: dict[str, Any] = {"name": "own", "preparation": tiny.preparation, **models}
    return config.model_copy(update={"models": (ModelSettings(**fields),)})


def metrics_of(folder: Path) -> dict[str, dict[str, float | None]]:
    """The numbers of the start model, the retain model and the run, by kind."""
    return {r.kind: dict(r.epochs[-1].metrics) for r in read_records(folder)}


def check_same(found: Path, expected: Path) -> None:
    numbers, wanted = metrics_of(found), metrics_of(expected)
    assert numbers.keys() == wanted.keys() == {"fine-tuned", "retain", "run"}
    for kind, metrics in numbers.items():
        assert metrics.keys() == wanted[kind].keys()
        for name, value in metrics.items():
            other = wanted[kind][name]
            assert (value is None) is (other is None), (kind, name)
            if value is not None:
                assert value == pytest.approx(other, rel=1e-3, abs=1e-4), (kind, name)


FROM_PEFT = "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"


@pytest.mark.filterwarnings(FROM_PEFT)
@pytest.mark.parametrize("lora", [None, LoRA(rank=2, target_modules=("v_proj", "up_proj"))])
def test_adapters_of_start_and_retain_models_are_the_merged_models(
    lora: LoRA | None, base: Path, place: Path
) -> None:
    start = save_adapter(base, place / "start", 1)
    retain = save_adapter(base, place / "retain", 2)
    adapted = of_folders(
        place / "adapted",
        base=str(start),
        fine_tuned=str(start),
        retain={"retain50": str(retain)},
        lora=lora,
    )
    whole = of_folders(
        place / "whole",
        base=str(save_merged(base, start, place / "start-whole")),
        fine_tuned=str(place / "start-whole"),
        retain={"retain50": str(save_merged(base, retain, place / "retain-whole"))},
        lora=lora,
    )
    check_same(swept(adapted), swept(whole))


@pytest.mark.filterwarnings(FROM_PEFT)
def test_models_are_prepared_on_top_of_an_adapter(base: Path, place: Path) -> None:
    adapter = save_adapter(base, place / "adapter", 1)
    whole = save_merged(base, adapter, place / "merged")
    check_same(
        swept(of_folders(place / "adapted", base=str(adapter))),
        swept(of_folders(place / "whole", base=str(whole))),
    )


@pytest.mark.filterwarnings(FROM_PEFT)
def test_ids_follow_what_adapter_and_base_contain(base: Path, place: Path) -> None:
    adapter = save_adapter(base, place / "adapter", 1)

    def id_of(**models: Any) -> tuple[str, tuple[str, ...] | None]:
        plan, _ = plan_sweep(of_folders(place, **{"base": str(adapter), **models}))
        return plan.runs[0].id, plan.references

    before = id_of()
    moved = place / "moved"
    shutil.copytree(base, moved / "base")
    shutil.copytree(adapter, moved / "adapter")
    config = moved / "adapter" / "adapter_config.json"
    gone = json.loads(config.read_text()) | {"base_model_name_or_path": "/gone/base"}
    config.write_text(json.dumps(gone))
    with pytest.raises(Exception, match="an adapter on '/gone/base', as its adapter_config"):
        id_of(base=str(moved / "adapter"))
    named = id_of(base=str(moved / "adapter"), adapter_base=str(moved / "base"))
    assert named == before, "neither place counts"
    weights = bytearray((moved / "base" / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (moved / "base" / "model.safetensors").write_bytes(weights)
    changed = id_of(base=str(moved / "adapter"), adapter_base=str(moved / "base"))
    assert changed[0] != before[0]
    assert changed[1] is not None
    assert before[1] is not None
    assert not {*changed[1]} & {*before[1]}


def test_a_base_for_adapters_has_no_effect_without_one(base: Path, place: Path) -> None:
    config = of_folders(place, base=str(base), adapter_base=str(base))
    with pytest.raises(Exception, match=r"models\.own\.adapter_base: none of base, fine_tuned and"):
        plan_sweep(config)


@pytest.mark.filterwarnings(FROM_PEFT)
@with_mlflow
def test_lora_with_named_layers_is_run_exported_and_tracked(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The embeddings of the tiny model are tied: merging must not change the output layer."""
    config = config_of(place, epochs=1)
    (tiny,) = config.models
    lora = LoRA(rank=2, target_modules=("q_proj", "embed_tokens"))
    adapted = tiny.model_copy(update={"lora": lora})
    folder = swept(config.model_copy(update={"models": (adapted,)}))
    (record,) = (r for r in read_records(folder) if r.kind == "run")
    recorded = len(record.epochs[0].metrics)
    to = place / "adapter"
    words = ["export", record.id, "--in", str(folder), "--epoch", "last", "--to"]
    assert main([*words, str(to), "--adapter"]) == 0
    assert f"{recorded} of {recorded} are equal" in capsys.readouterr().out
    whole = place / "whole"
    assert main([*words, str(whole)]) == 0
    check_exported(whole, record)
    uri = f"sqlite:///{place}/other.db"
    assert main(["track", str(folder), "--uri", uri]) == 0


def check_exported(whole: Path, record: Record) -> None:
    card = (whole / "README.md").read_text(encoding="utf-8")
    assert "- weights: float32\n" in card
    line = next(line for line in card.splitlines() if "was compared with the sweep" in line)
    utility = record.epochs[0].metrics["model_utility"]
    assert "model_utility" not in line or f"model_utility {utility:.4f}" in line


def as_bfloat16(base: Path, to: Path) -> Path:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    model.save_pretrained(to)
    for file in base.glob("tokenizer*"):
        shutil.copy(file, to)
    return to


def test_a_model_is_exported_in_the_dtype_of_its_base_or_another_one(
    base: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    folder = swept(of_folders(place, base=str(as_bfloat16(base, place / "bf16"))))
    (record,) = (r for r in read_records(folder) if r.kind == "run")
    recorded = len(record.epochs[0].metrics)
    words = ["export", record.id, "--in", str(folder), "--epoch", "last", "--to"]

    def exported(name: str, *options: str) -> tuple[Any, str, str]:
        assert main([*words, str(place / name), *options]) == 0
        card = (place / name / "README.md").read_text(encoding="utf-8")
        model: Any = AutoModelForCausalLM.from_pretrained(place / name, dtype="auto")
        return model, card, capsys.readouterr().out

    model, card, printed = exported("default")
    assert model.dtype == torch.bfloat16
    assert stored_dtype(place / "default") == "bfloat16"
    assert "- weights: bfloat16 (trained in float32)\n" in card
    rounded = "it was trained in float32 and is written in bfloat16, which rounds its weights"
    assert rounded in printed
    assert rounded in card
    same, card, printed = exported("same", "--dtype", "float32")
    assert same.dtype == torch.float32
    assert "- weights: float32\n" in card
    assert f"{recorded} of {recorded} are equal" in printed
    for name, weight in same.state_dict().items():
        assert torch.equal(weight.to(torch.bfloat16), model.state_dict()[name])
    half, _, _ = exported("half", "--dtype", "float16")
    assert half.dtype == torch.float16


def test_weights_of_a_run_in_bfloat16_are_not_widened(base: Path, place: Path) -> None:
    folder = swept(of_folders(place, base=str(base), dtype="bfloat16"))
    words = ["export", "npo", "--in", str(folder), "--epoch", "last", "--to"]
    assert main([*words, str(place / "out")]) == 0
    assert stored_dtype(place / "out") == "bfloat16"


@pytest.mark.filterwarnings(FROM_PEFT)
def test_the_command_line_names_another_base(
    base: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = save_adapter(base, place / "adapter", 1)
    words = ["evaluate", str(adapter), "--data", "synthetic", "--rows", "2", "--json"]
    assert main(words) == 0
    expected = json.loads(capsys.readouterr().out)
    path = adapter / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"base_model_name_or_path": "/gone/base"}))
    assert main(words) == 2
    assert "an adapter on '/gone/base', as its adapter_config.json says" in capsys.readouterr().err
    assert main([*words, "--adapter-base", str(base)]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert main(["evaluate", str(base), *words[2:], "--adapter-base", str(base)]) == 2
    assert "none of the models is the folder of an adapter" in capsys.readouterr().err
