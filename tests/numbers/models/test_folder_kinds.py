"""Folders that trainers write: the error names the cause, and its command makes a model of them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from unlearnbench.base.errors import ModelError
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.loading import check_weights, load_model
from unlearnbench.models.named_models import source_errors
from unlearnbench.models.source import Source

from ...factories.marks import diagonals_in_make_test


@pytest.fixture
def folder(tmp_path: Path, model: Any, tokenizer: Any) -> Path:
    """A model whose embeddings are tied."""
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def error_of(place: Path) -> str:
    """The message about a folder, which a plan has as well."""
    settings = ModelSettings(name="m", base=str(place), template="plain")
    with pytest.raises(ModelError) as caught:
        load_model(Source(str(place)), settings)
    planned = [str(error) for _, error in source_errors(settings)]
    if not planned:
        with pytest.raises(ModelError) as found:
            check_weights(settings)
        planned = [str(found.value)]
    assert planned == [str(caught.value)]
    return str(caught.value)


def run(command: str, cwd: Path, **replaced: str) -> None:
    words = shlex.split(command)
    words[0] = {"python": sys.executable, **replaced}.get(words[0], words[0])
    ended = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def check_same(made: Path, folder: Path) -> None:
    """A folder holds the weights of the model, loaded by plain transformers."""
    from transformers import AutoModelForCausalLM

    ids = torch.arange(3, 30)[None]
    with torch.no_grad():
        found, expected = (
            AutoModelForCausalLM.from_pretrained(place)(ids).logits for place in (made, folder)
        )
    assert torch.equal(found, expected)
    load_model(Source(str(made)), ModelSettings(name="m", base=str(made)))


def test_shards_of_fsdp_are_merged_by_the_command(folder: Path, model: Any, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    shards = tmp_path / "out" / "checkpoint-20" / "pytorch_model_fsdp_0"
    (tmp_path / "out" / "checkpoint-3").mkdir(parents=True)
    shards.mkdir(parents=True)
    state: dict[str, Any] = {"model": model.state_dict()}
    with pytest.warns(UserWarning, match="torch.distributed"):
        save(state, checkpoint_id=str(shards), no_dist=True)
    for place in (shards, shards.parent, tmp_path / "out"):
        text = error_of(place)
        assert text.startswith(f"{place}: no config.json; it holds ")
        assert "it holds shards of FSDP, not whole weights: put them together by" in text
        (command,) = re.findall(r"`(.*?)`", text)
        assert command == f"accelerate merge-weights {shards} OUT"
    accelerate = str(Path(sys.executable).with_name("accelerate"))
    run(command, tmp_path, accelerate=accelerate)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path / "OUT")
    check_same(tmp_path / "OUT", folder)


def test_shards_of_zero_are_named_with_their_own_script(tmp_path: Path) -> None:
    """The command was tried with DeepSpeed 0.19.8, which the tests do not install."""
    step = tmp_path / "out" / "checkpoint-5" / "global_step5"
    step.mkdir(parents=True)
    (step / "mp_rank_00_model_states.pt").touch()
    (step.parent / "config.json").write_text("{}")
    for place in (step, step.parent, tmp_path / "out"):
        text = error_of(place)
        assert "it holds shards of DeepSpeed ZeRO, not whole weights: put them" in text
        (command,) = re.findall(r"`(.*?)`", text)
        assert command == f"python {step.parent}/zero_to_fp32.py {step.parent} OUT"


def test_of_checkpoints_the_newest_is_named(folder: Path, tmp_path: Path) -> None:
    for step in (9, 100, 20):
        shutil.copytree(folder, tmp_path / "out" / f"checkpoint-{step}")
    text = error_of(tmp_path / "out")
    assert text.endswith(f"give one of them, such as {tmp_path}/out/checkpoint-100")
    check_same(tmp_path / "out" / "checkpoint-100", folder)


def test_other_folders_are_named(folder: Path, tmp_path: Path) -> None:
    assert error_of(tmp_path).endswith(f"the model is in a folder inside it: give {folder}")
    other = tmp_path / "gguf"
    other.mkdir()
    (other / "small.gguf").touch()
    assert error_of(other).endswith(f"give the file, such as {other}/small.gguf")
    sweep = tmp_path / "runs"
    (sweep / "records").mkdir(parents=True)
    (sweep / "plan.json").touch()
    assert f"`unlearnbench export METHOD --in {sweep} --to OUT`" in error_of(sweep)
    (tmp_path / "empty").mkdir()
    assert error_of(tmp_path / "empty").endswith("no config.json; this is not a model folder")


@pytest.mark.parametrize(
    ("prefix", "sharded"),
    diagonals_in_make_test(2, ("_orig_mod.", "module.", "module._orig_mod."), (False, True)),
)
def test_prefixes_of_all_names_are_removed_by_the_command(
    prefix: str, sharded: bool, folder: Path, model: Any, tmp_path: Path
) -> None:
    place = tmp_path / "with 'prefix"
    shutil.copytree(folder, place)
    if sharded:
        (place / "model.safetensors").unlink()
        model.save_pretrained(place, max_shard_size="20KB")
        index = place / "model.safetensors.index.json"
        index.write_text(re.sub(r'"(model|lm_head)\.', rf'"{prefix}\1.', index.read_text()))
    for path in sorted(place.glob("*.safetensors")):
        weights = {prefix + name: weight.clone() for name, weight in load_file(path).items()}
        path.unlink()
        save_file(weights, path, metadata={"format": "pt"})
    assert sharded is (len([*place.glob("*.safetensors")]) > 1)
    text = error_of(place)
    assert f"the names of all weights begin with {prefix!r}, which torch.compile or" in text
    run(text[text.index("python -c") :], tmp_path)
    check_same(tmp_path / "OUT", folder)


def test_a_prefix_of_some_names_is_reported_as_before(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}
    weights["module.model.norm.weight"] = weights.pop("model.norm.weight")
    save_file(weights, path, metadata={"format": "pt"})
    assert "model.norm.weight is missing" in error_of(folder)


@pytest.mark.long
def test_pickled_weights_are_converted_unless_some_are_missing(
    folder: Path, model: Any, tmp_path: Path
) -> None:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    text = error_of(folder)
    assert "no *.safetensors; pickled weights are not loaded, convert them first: " in text
    run(text[text.index("python -c") :], tmp_path)
    model.save_pretrained(tmp_path / "expected")
    check_same(folder, tmp_path / "expected")
    (folder / "model.safetensors").unlink()
    torch.save({f"_orig_mod.{name}": w for name, w in state.items()}, folder / "pytorch_model.bin")
    with pytest.raises(AssertionError, match="missing_keys"):
        run(text[text.index("python -c") :], tmp_path)
    assert not (folder / "model.safetensors").exists(), "no random weights are written"


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_a_pickled_adapter_is_converted_by_the_command(folder: Path, tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    adapter = tmp_path / "an adapter"
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config).save_pretrained(
        adapter
    )
    state = load_file(adapter / "adapter_model.safetensors")
    (adapter / "adapter_model.safetensors").unlink()
    torch.save(state, adapter / "adapter_model.bin")
    text = error_of(adapter)
    (command,) = re.findall(r"\((cd .*)\)$", text)
    python = command.partition(" && ")[2]
    run(python, adapter)
    found = load_file(adapter / "adapter_model.safetensors")
    assert found.keys() == state.keys()
    load_model(Source(str(adapter)), ModelSettings(name="m", base=str(adapter)))
