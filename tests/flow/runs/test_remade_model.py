"""Exported models: trained again from a record, loaded by plain transformers, the same numbers."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import DataError
from unlearnbench.cli.main import main
from unlearnbench.config.plan import make_plan
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.schema import LoRA
from unlearnbench.evaluation.summary import summarize
from unlearnbench.models.loading import load_model
from unlearnbench.models.lora import load_any_model
from unlearnbench.models.rows_loading import fingerprint, load_benchmark
from unlearnbench.models.source import Source
from unlearnbench.report.exported_model import choose, export_model, numbers_of
from unlearnbench.report.sweep_tracker import sweep_config
from unlearnbench.results.finalize import ReferenceKey, references_of
from unlearnbench.results.records import Record, read_records
from unlearnbench.results.sweep_folder import claim_folder
from unlearnbench.results.table import TableRow
from unlearnbench.runs.evaluate_model import evaluate_model
from unlearnbench.runs.remade_model import remake
from unlearnbench.runs.run import run_single

from ..small_run import config_of

silent: Callable[[str], None] = lambda _: None  # noqa: E731


def swept(place: Path, **changes: Any) -> Path:
    """A sweep's folder with its plan and the record of each of its runs."""
    config = config_of(place, **({"epochs": 2} | changes))
    data = load_benchmark(config.data, config.split_keys)
    plan = make_plan(config, {f: fingerprint(data, f) for f in data.splits})
    folder = claim_folder(plan)
    for run in plan.runs:
        run_single(run, config, folder, silent)
    return folder


def test_a_run_of_one_of_several_splits_has_the_rows_that_it_had(place: Path) -> None:
    """Retain rows of a small synthetic benchmark are those of its largest split."""
    folder = swept(place, forget_fractions=(0.25, 0.5), epochs=1)
    first = next(r for r in read_records(folder) if r.kind == "run" and r.forget_fraction == 0.25)
    to = place / "out"
    assert main(["export", first.id, "--in", str(folder), "--epoch", "last", "--to", str(to)]) == 0
    card = (to / "README.md").read_text(encoding="utf-8")
    assert "--forget 0.25 --template auto --profile tofu --rows 4 --max-length 96`" in card


def test_a_run_without_texts_is_compared_with_its_table(tmp_path: Path) -> None:
    # Not `place`, whose start and retain models were evaluated with texts.
    folder = swept(tmp_path, epochs=1, keep_texts=False)
    to = tmp_path / "out"
    run = the_run(folder)
    assert main(["export", run.id, "--in", str(folder), "--epoch", "last", "--to", str(to)]) == 0
    card = (to / "README.md").read_text(encoding="utf-8")
    assert re.search(r"compared with the sweep's table: of the numbers (\d+) of \1 are equal", card)


def the_run(folder: Path) -> Record:
    (record,) = (one for one in read_records(folder) if one.kind == "run")
    return record


def test_an_exported_model_is_loaded_by_plain_transformers_and_has_the_recorded_numbers(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, to = swept(place), place / "unlearned"
    record, before = the_run(folder), sorted(folder.rglob("*"))
    assert main(["export", "npo", "--in", str(folder), "--epoch", "1", "--to", str(to)]) == 0
    printed = capsys.readouterr()
    recorded = record.epochs[0].metrics
    assert f"{len(recorded)} of {len(recorded)} are equal" in printed.out
    assert "epoch 1 of 1: train" in printed.err
    assert sorted(folder.rglob("*")) == before  # the sweep's folder is only read

    files = {path.name for path in to.iterdir()}
    assert files >= {"config.json", "generation_config.json", "model.safetensors", "README.md"}
    assert files >= {"tokenizer.json", "tokenizer_config.json"}
    model: Any = AutoModelForCausalLM.from_pretrained(to)
    assert model.config.use_cache  # which training turned off
    assert model.dtype == torch.float32

    config = config_of(place)
    profile = profile_of(config.evaluation)
    tokenizer = AutoTokenizer.from_pretrained(to)
    given: Any = {"data": config.data, "forget": 0.5, "profile": profile}
    found = evaluate_model(model, tokenizer=tokenizer, **given)
    references = references_of(read_records(folder))
    retain, start = (
        references[ReferenceKey(kind, "tiny", 0.5, "")].record.evaluations[0]
        for kind in ("retain", "fine-tuned")
    )
    metrics = summarize(found, retain, profile, start, config.data)
    assert {name: metrics[name] for name in recorded} == recorded

    card = (to / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: ")
    headline = config.headline
    for text in (
        *(record.id, profile.id, "was run with 1 seed", "relearning"),
        *(headline.kept.label, f"{recorded[headline.kept.column]:.4g}"),
    ):
        assert text in card, text


def with_utility(row: TableRow, utility: float) -> TableRow:
    return replace(row, metrics={**row.metrics, "model_utility": utility})


def test_a_written_model_is_compared_with_the_numbers_of_the_table(place: Path) -> None:
    """The record's own numbers may have been computed by other code."""
    folder, to = swept(place, epochs=1), place / "unlearned"
    config, choice = sweep_config(folder), choose(folder, "npo", "last")
    older = {**choice.record.epochs[0].metrics, "model_utility": 0.5}
    epochs = (replace(choice.record.epochs[0], metrics=older),)
    record = replace(choice.record, epochs=epochs)
    sentence = export_model(replace(choice, record=record), config, folder, to)
    assert f"{len(older)} of {len(older)} are equal" in sentence


def test_a_written_model_has_numbers_by_the_metrics_that_are_named_now(place: Path) -> None:
    """The settings of a metric have changed since the run, and the table follows them."""
    folder, to = swept(place, epochs=1), place / "unlearned"
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    plan["config"]["evaluation"]["metrics"] = {"mia-min-k": {"share": 0.05}}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    choice = choose(folder, "npo", "last")
    recorded = choice.record.epochs[0].metrics
    assert recorded["mia_min_k"] != choice.row.metrics["mia_min_k"]
    sentence = export_model(choice, sweep_config(folder), folder, to)
    assert f"{len(recorded)} of {len(recorded)} are equal" in sentence


def test_numbers_that_differ_and_other_rows_are_named(place: Path) -> None:
    folder, to = swept(place, epochs=1), place / "unlearned"
    config, choice = sweep_config(folder), choose(folder, "npo", "last")
    count = len(choice.record.epochs[0].metrics)
    changed = replace(choice, row=with_utility(choice.row, 0.5))
    sentence = export_model(changed, config, folder, to)
    assert f"{count - 1} of {count} are equal; model_utility " in sentence
    assert sentence.endswith("recorded 0.5")
    other = replace(choice.record, spec={**choice.record.spec, "data_fingerprint": "of others"})
    with pytest.raises(DataError, match="was made on other data: of others then"):
        export_model(replace(choice, record=other), config, folder, place / "new")
    assert not (place / "new").exists()


def test_a_lora_run_is_merged_or_keeps_its_adapter(place: Path) -> None:
    from transformers import AutoModelForCausalLM

    (model,) = config_of(place).models
    lora = model.model_copy(update={"lora": LoRA(rank=2)})
    folder = swept(place, models=(lora,), epochs=1)
    record, records, config = the_run(folder), read_records(folder), sweep_config(folder)
    whole, adapter = place / "merged", place / "adapter"
    choice, recorded = choose(folder, "npo", "last"), record.epochs[0].metrics
    # The prepared folder also has start and retain models without an adapter.
    own = [one for one in records if one.spec["model"]["lora"]]
    choice = replace(choice, results=Results.of(own, name="small"))
    seen = remake(record, records, 1, config, folder, whole, show=silent)
    found = numbers_of(seen, choice)
    assert {name: found.get(name) for name in recorded} == pytest.approx(recorded, abs=1e-4)
    seen = remake(record, records, 1, config, folder, adapter, adapter=True, show=silent)
    found = numbers_of(seen, choice)
    assert {name: found.get(name) for name in recorded} == recorded
    assert (adapter / "adapter_model.safetensors").is_file()
    assert not (adapter / "model.safetensors").exists()
    merged: Any = AutoModelForCausalLM.from_pretrained(whole)
    on_top: Any = load_any_model(Source(str(adapter)), model)
    ids = torch.arange(3, 13)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, on_top(ids).logits, atol=1e-5, rtol=1e-4)


def test_a_run_is_computed_by_another_attention(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a record of a machine with kernels that this one has not."""
    folder, seen = swept(place, epochs=1), list[str]()
    for module in ("build_trainer", "remade_model"):
        name = "load_model" if module == "build_trainer" else "load_any_model"
        where = f"unlearnbench.runs.{module}.{name}"
        load: Any = load_model if module == "build_trainer" else load_any_model

        def watched(source: Source, settings: Any, load: Any = load, **options: Any) -> Any:
            model = load(source, settings, **options)
            seen.append(model.config._attn_implementation)
            return model

        monkeypatch.setattr(where, watched)
    prepared = sorted(place.rglob("prepared.json"))
    words = ["export", "npo", "--in", str(folder), "--epoch", "1", "--to", str(place / "out")]
    assert main([*words, "--attention", "eager"]) == 0
    assert seen == ["eager", "eager"]
    assert "compared with the sweep's table" in capsys.readouterr().out
    # The start model is the one that was prepared for the sweep.
    assert sorted(place.rglob("prepared.json")) == prepared
