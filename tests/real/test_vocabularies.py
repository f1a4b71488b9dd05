"""The presets' prompts and numbers of tokens with the real vocabularies of their models.

`make real` fetches these into the user's cache; TOFU's rows and published logs are beside the
project. Without either, tests skip.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from unlearnbench.base.hashing import user_cache
from unlearnbench.benchmarks.tofu import TOFU
from unlearnbench.config.config_sources import shipped_configs
from unlearnbench.config.loader import load_config
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.schema import ModelSettings
from unlearnbench.evaluation.logs import read_log
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.chat_template import resolve_template
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.rows_loading import load_benchmark

pytestmark = pytest.mark.real
VOCABULARIES = {
    "tofu_llama2_7b": "llama-2",
    "tofu_llama2_7b_one_gpu": "llama-2",
    "open_unlearning_tofu_7b": "llama-2",
    "authors_tofu_7b": "llama-2",
    "authors_tofu_7b_5_epochs": "llama-2",
    "tofu_phi_1_5": "gpt-2",
    "tofu_llama3_2_1b": "llama-3.2",
    "open_unlearning_tofu_1b": "llama-3.2",
    "open_unlearning_tofu_3b": "llama-3.2",
    "open_unlearning_tofu_8b": "llama-3.2",
}
"""By preset with models of the hub."""
LOGS = {"tofu_llama2_7b": "llama2-7b_full", "tofu_phi_1_5": "phi_full"}
"""TOFU's own logs, which have the number of tokens of every answer."""
OPEN_UNLEARNING = "tofu_llama3_2_1b"


def encoder_of(preset: str, profile: str) -> Encoder:
    """The encoder that evaluates a preset's model, with its real vocabulary."""
    folder = user_cache("vocabularies") / VOCABULARIES[preset]
    if not folder.is_dir():
        pytest.skip(f"no {folder}: `make real` fetches it")
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    model: ModelSettings = load_config(preset).models[0]
    rules = get_profile(profile)
    template = resolve_template(model.template, tokenizer, model.template_args)
    options = (rules.max_length, rules.eos_after_cut)
    return Encoder(tokenizer, template, *options, eos_as_padding=rules.eos_as_padding)


def test_every_preset_of_published_models_has_its_vocabulary() -> None:
    hub = {name for name in shipped_configs() if "tofu" in name} - {
        "tofu_tiny",
        "tofu_smollm2",
        "tofu_smollm2_forget10",
    }
    assert hub == VOCABULARIES.keys()


@pytest.mark.parametrize("preset", LOGS)
def test_answers_have_the_tokens_of_tofus_logs(
    preset: str, tofu_folder: Path, eval_logs_folder: Path, tmp_path: Path
) -> None:
    encoder, profile = encoder_of(preset, "tofu"), get_profile("tofu")
    path = eval_logs_folder / f"{LOGS[preset]}.json.gz"
    log = tmp_path / "log.json"
    log.write_bytes(gzip.decompress(path.read_bytes()))
    published = read_log(log).sets
    rows = evaluation_sets(
        load_benchmark(TOFU(source="tofu", path=str(tofu_folder)), (0.1,)), 0.1, profile
    )
    questions = 0
    for name, seen in published.items():
        for i, question in enumerate(rows[name][: len(seen.answer_loss)]):
            counts = [encoder.row(question, text).scored for text in question.scored_answers]
            logged = [seen.answer_tokens[i], seen.base_tokens[i], *seen.perturbed_tokens[i]]
            assert counts == logged, (name, i)
            questions += 1
    assert questions == 817


def test_prompts_are_those_of_open_unlearnings_logs(
    tofu_folder: Path, open_unlearning_logs: Path
) -> None:
    encoder = encoder_of(OPEN_UNLEARNING, "open-unlearning")
    path = open_unlearning_logs / "Llama-3.2-1B-Instruct_full_forget01.json.gz"
    log = json.loads(gzip.decompress(path.read_bytes()))
    dataset = load_benchmark(TOFU(source="tofu", path=str(tofu_folder)), (0.01,))
    rows = evaluation_sets(dataset, 0.01, get_profile("open-unlearning"))["forget"]
    generated = log["forget_Q_A_ROUGE"]["value_by_index"]
    memorised = log["exact_memorization"]["value_by_index"]
    assert len(rows) == len(generated) == 40
    for i, row in enumerate(rows):
        prompt = [t for t in encoder.row(row).ids[: encoder.row(row).start]]
        text = encoder.tokenizer.decode(prompt, skip_special_tokens=True)
        assert text == generated[str(i)]["input"]
        # A share of the answer's tokens without EOS, so a whole number of them.
        hits = memorised[str(i)]["score"] * (encoder.row(row).scored - 1)
        assert hits == pytest.approx(np.round(hits), abs=1e-3)
