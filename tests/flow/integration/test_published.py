"""Every published benchmark and every preset, from a hub over HTTP through Ray to the page.

Rows are made up, in the layouts of the hub's data sets. Models are tiny stand-ins under the names
that the presets have. Each sweep is cut to one method, one rate and one epoch. The benchmarks are
then swept from folders with the same rows: nothing is left to do, because all ids are equal.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.config.config_sources import shipped_configs
from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import ModelSettings

from ... import hub_layouts
from ...chat_models import KINDS, build_chat_tokenizer
from ...conftest import QUESTIONS, FakeHub
from ...made_up_benchmarks import edu_relat
from ...stand_in_hub import served

# One test waits for all sweeps: 40 of them.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PROJECT = Path(__file__).parents[3]
MODEL = "org/tiny"
SHAPE = "{vocabulary: 1024, hidden_size: 32, layers: 2, heads: 2, intermediate_size: 48}"
SHORT = (
    "methods=[gradient-difference]",
    "learning_rates=[1.0e-5]",
    "epochs=1",
    "epochs_as=checkpoints",
    "training={batch_size: 4, max_length: 128}",
    "resources={gpu: 0, cpu: 1}",
    "seeds=[0]",
    "evaluation.rows=4",
    "evaluation.every=1",
    "attacks={}",
    "modifiers=[]",
    "tune=null",
    "ray={concurrent: 2}",
    "tracking={enabled: false}",
)
"""What makes a sweep short, and independent of GPUs."""

SEMEVAL = "llmunlearningsemeval2025organization/semeval25-unlearning-dataset-public"
BENCHMARKS: dict[str, dict[str, Any]] = {
    "tofu": {"data": {}, "forget_fractions": [0.05]},
    "muse": {"data": {}},
    "muse-scalability": {"data": {}, "splits": ["forget2"]},
    "muse-sustainability": {
        "data": {},
        "splits": ["forget1", "forget2"],
        "requests": "in-sequence",
    },
    "wmdp": {"data": {"corpora": "cais/wmdp-corpora"}, "splits": ["bio", "cyber"]},
    "rwku": {"data": {}, "splits": ["target7"]},
    "lume": {"data": {"hub_id": SEMEVAL, "part": "train"}},
    "knowundo": {"data": {}},
    "edu-relat": {"data": {}, "splits": ["target3"]},
}
"""By source, the sections of a sweep that are its own."""
RETAINED = {"tofu": "retain95", "muse": "all-retain"}
"""Names of the retain models of the benchmarks that have one."""


def in_folder(source: str, folder: Path) -> dict[str, str]:
    """Settings of a benchmark that is read from a folder."""
    further = ("mmlu", "corpora") if source == "wmdp" else ()
    return {"path": str(folder)} | dict.fromkeys(further, str(folder))


def save_model(folder: Path) -> None:
    """A tiny Llama with a chat template and room for long prompts."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_chat_tokenizer(KINDS["llama-3"], QUESTIONS)
    tokenizer.pad_token = tokenizer.eos_token
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=8192,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def for_model(index: int, model: ModelSettings) -> list[str]:
    """What makes the preparation of a preset's model short."""
    key = f"models.{index}"
    if model.base == "tiny":
        return [f"{key}.architecture={SHAPE}", f"{key}.preparation={{epochs: 1, base_epochs: 1}}"]
    # SmolLM2 comes from a package, and so from no hub.
    is_packaged = model.base is not None and model.base.startswith("smollm2")
    stand_in = [f"{key}.base={MODEL}"] if is_packaged else []
    return [*stand_in, f"{key}.preparation={{epochs: 1}}"]


def named_models(model: ModelSettings) -> set[str]:
    """Models of the hub that a preset's model names."""
    places = {model.base, model.fine_tuned, *model.retain.values()}
    return {place for place in places if place is not None and "/" in place}


def write_sweep(file: Path, source: str, settings: Mapping[str, Any]) -> None:
    """Write the configuration of a benchmark's sweep. (JSON is YAML.)"""
    model: dict[str, Any] = {"name": "tiny", "base": MODEL, "fine_tuned": MODEL}
    model["template"] = "plain"
    if source in RETAINED:
        model["retain"] = {RETAINED[source]: MODEL}
    whole: dict[str, Any] = {"name": source, "models": [model], **settings}
    whole |= {"methods": ["gradient-difference"], "data": {"source": source, **settings["data"]}}
    file.write_text(json.dumps(whole), encoding="utf-8")


Case = tuple[str, str, list[str]]
"""Name, configuration and overrides of a sweep."""


def preset_cases(place: Path, hub: FakeHub) -> list[Case]:
    """The presets, cut short; their models are put on the hub."""
    models = {MODEL, "NousResearch/Llama-2-7b-hf"}  # the latter is the tokenizer of MUSE
    cases: list[Case] = []
    for preset in shipped_configs():
        config = load_config(preset, [])
        overrides = [*SHORT, f"output={place / 'presets'}"]
        for index, model in enumerate(config.models):
            overrides += for_model(index, model)
            models |= named_models(model)
        if config.data.source in ("synthetic", "passages", "wmdp-twin"):
            overrides += ["data.authors=8", "data.pretraining_authors=2", "forget_fractions=[0.25]"]
        elif config.forget_fractions:
            overrides.append(f"forget_fractions=[{config.forget_fractions[-1]}]")
        cases.append((preset, preset, overrides))
    for name in models:
        hub.add(f"models/{name}", place / "model")
    return cases


def benchmark_cases(place: Path, hub: FakeHub) -> list[Case]:
    """The published benchmarks, from the hub (their rows are put on it) and then from folders."""
    cases: list[Case] = []
    for source, settings in BENCHMARKS.items():
        folder = place / f"rows-{source}"
        folder.mkdir()
        ways = {"folder": {**settings, "data": in_folder(source, folder)}}
        if source == "edu-relat":  # is not on the hub
            edu_relat(folder)
        else:
            ways = {"hub": settings, **ways}
            write = getattr(hub_layouts, source.replace("-", "_"))
            for name, files in write(folder, place / "hub" / source).items():
                if f"datasets/{name}" not in hub.repositories:
                    hub.add(f"datasets/{name}", files)
        for way, sections in ways.items():
            file = place / f"{source}-{way}.yaml"
            write_sweep(file, source, sections)
            cases.append((f"{source} {way}", str(file), [*SHORT, f"output={place / 'runs'}"]))
    return cases


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each sweep, by preset, by `SOURCE hub` and by `SOURCE folder`."""
    place = tmp_path_factory.mktemp("published")
    save_model(place / "model")
    hub = FakeHub()
    cases = [*preset_cases(place, hub), *benchmark_cases(place, hub)]
    (place / "cases.json").write_text(json.dumps(cases), encoding="utf-8")

    places = {"HF_HOME": place / "hf", "XDG_CACHE_HOME": place / "cache"}
    environment = os.environ | {name: str(path) for name, path in places.items()}
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "tests.published_sweeps", str(place)]
    with served(hub) as address:
        environment["HF_ENDPOINT"] = address
        ended = subprocess.run(
            command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
        )
    assert ended.returncode == 0, ended.stderr[-4000:]
    carried_out: dict[str, Any] = json.loads((place / "outcomes.json").read_text(encoding="utf-8"))
    return carried_out


def assert_whole(outcome: Mapping[str, Any]) -> None:
    """A sweep whose runs all have a record, and that has a page."""
    assert outcome["code"] == 0, outcome["shown"][-3000:]
    planned = {run["id"] for run in outcome["plan"]["runs"]}
    recorded = {place.split("/")[1] for place in outcome["records"]}
    assert planned
    assert planned <= recorded
    assert outcome["has_page"]


@pytest.mark.parametrize("preset", shipped_configs())
def test_a_preset_reaches_its_page(preset: str, outcomes: dict[str, Any]) -> None:
    assert_whole(outcomes[preset])


@pytest.mark.parametrize("source", BENCHMARKS)
def test_a_benchmark_reaches_its_page(source: str, outcomes: dict[str, Any]) -> None:
    assert_whole(outcomes[f"{source} {'folder' if source == 'edu-relat' else 'hub'}"])


@pytest.mark.parametrize("source", [name for name in BENCHMARKS if name != "edu-relat"])
def test_a_folder_with_the_same_rows_leaves_nothing_to_do(
    source: str, outcomes: dict[str, Any]
) -> None:
    from_hub, from_folder = outcomes[f"{source} hub"], outcomes[f"{source} folder"]
    assert_whole(from_folder)
    assert from_folder["plan"]["data"] == from_hub["plan"]["data"], "the fingerprints"
    assert from_folder["records"] == from_hub["records"], "no record is new or newer"


@pytest.mark.parametrize("source", [name for name in BENCHMARKS if name != "edu-relat"])
def test_records_name_the_commits_of_all_repositories(
    source: str, outcomes: dict[str, Any]
) -> None:
    commits = outcomes[f"{source} hub"]["plan"]["hub"]
    assert "model org/tiny@main" in commits
    data = {label.split()[1] for label in commits if label.startswith("dataset ")}
    expected = {
        "wmdp": {
            *("cais/wmdp@main", "cais/mmlu@main", "cais/wmdp-corpora@main"),
            "cais/wmdp-bio-forget-corpus@main",
        }
    }
    assert data == expected[source] if source in expected else len(data) == 1
