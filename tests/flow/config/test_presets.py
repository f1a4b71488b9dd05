"""The presets of open-unlearning, against the settings that its files compose, row by row."""

import csv
from collections.abc import Mapping
from typing import cast

import pytest

from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import make_plan
from unlearnbench.config.run_spec import RunSpec

from ...conftest import shared_data

NAMES = {
    "GradAscent": "gradient-ascent",
    "GradDiff": "gradient-difference",
    "IdkDPO": "dpo+nll",
    "NPO": "npo+nll",
    "SimNPO": "simnpo+nll",
    "RMU": "rmu",
    "UNDIAL": "undial",
    "SatImp": "satimp+nll",
    "WGA": "wga+nll",
    "CEU": "ce-u",
}
MODELS = {"1b": "Llama-3.2-1B-Instruct", "7b": "Llama-2-7b-chat-hf"}


def numbers(run: RunSpec) -> Mapping[str, float]:
    """Weights of the two terms and β, as open-unlearning names them."""
    part = cast("dict[str, float]", run.method.hyperparameters)
    retain = run.method.retain.weight if run.method.retain else part.get("retain_weight", 0.0)
    scale = 0.1 if run.method.name == "satimp" else 1.0  # retain 10 is forget 0.1 to retain 1
    forget = part.get("forget_weight", scale)
    return {"alpha_retain": retain * scale, "gamma_forget": forget, "beta": part.get("beta", 0.0)}


def assert_schedule(run: RunSpec, row: Mapping[str, str]) -> None:
    """What a run and a row of forget10 say of rate, epochs and steps."""
    assert run.learning_rate == float(row["lr"])
    assert f"{run.epochs} epochs" == row["epochs_or_steps"]
    assert run.training.batch_size == int(row["batch"].split()[0])
    assert run.training.schedule == row["schedule"]
    assert run.training.warmup_steps == 400 // run.training.batch_size
    assert row["warmup"] == "1 epoch"
    assert run.training.weight_decay == float(row["weight_decay"])


def rows_of(benchmark: str) -> list[dict[str, str]]:
    with (shared_data("presets") / "method_presets.csv").open(encoding="utf-8") as lines:
        return [row for row in csv.DictReader(lines) if row["benchmark"] == benchmark]


@pytest.mark.parametrize("size", ["1b", "7b"])
def test_each_entry_is_its_row(size: str) -> None:
    runs = {
        r.method.label: r for r in make_plan(load_config(f"open_unlearning_tofu_{size}"), "f").runs
    }
    seen = set[str]()
    for row in rows_of("TOFU"):
        name, _, effective = row["method"].partition(" (effective")
        of_model = row["model"] == MODELS[size] and row["split"] == "forget10"
        composed = of_model and "composed" in row["evidence"]
        if not (composed or effective) or name == "PDU":
            continue
        run = runs[NAMES[name]]
        seen.add(run.method.label)
        assert_schedule(run, row)
        for key, value in numbers(run).items():
            if row[key] and not row[key].startswith("beta"):
                assert value == pytest.approx(float(row[key].split(";")[0])), (name, key)
    assert seen == runs.keys() == {*NAMES.values()}


AUTHORS = {
    "authors_tofu_7b": {"NPO + GD": ["npo+nll"], "SimNPO + GD": ["simnpo+nll"]},
    "authors_tofu_7b_5_epochs": {
        "ME + GD": ["maximum-entropy+nll"],
        "IDK + AP": ["idk-ap"],
        "GRU on GA/NPO/WGA/...": ["gradient-ascent+nll+gru", "npo+nll+gru"],
    },
}


@pytest.mark.parametrize("preset", AUTHORS)
def test_entries_of_authors_are_their_rows(preset: str) -> None:
    runs = {r.method.label: r for r in make_plan(load_config(preset), "f").runs}
    seen = set[str]()
    for row in rows_of("TOFU"):
        of_row = AUTHORS[preset].get(row["method"], [])
        if row["model"].startswith("Llama-2-7b") and "10" in row["split"]:
            for label in of_row:
                run = runs[label]
                seen.add(label)
                assert_schedule(run, row)
                for key, value in numbers(run).items():
                    if (stated := row[key].split(" ")[0].strip(";")) and "gru" not in label:
                        assert value == pytest.approx(float(stated)), (label, key)
    assert seen == runs.keys()


@pytest.mark.parametrize("size", ["3b", "8b"])
def test_carried_over_are_the_settings_of_1b(size: str) -> None:
    def settings(name: str) -> list[object]:
        runs = make_plan(load_config(name), "f").runs
        return [(r.method, r.learning_rate, r.epochs, r.training) for r in runs]

    assert settings(f"open_unlearning_tofu_{size}") == settings("open_unlearning_tofu_1b")


def test_entries_of_muse_are_their_rows() -> None:
    runs = {
        r.method.label: r for r in make_plan(load_config("open_unlearning_muse_news"), "f").runs
    }
    composed = [r for r in rows_of("MUSE") if r["split"] == "News" and "composed" in r["evidence"]]
    assert {NAMES[row["method"]] for row in composed} == runs.keys()
    for row in composed:
        run = runs[NAMES[row["method"]]]
        assert run.learning_rate == float(row["lr"])
        assert f"{run.epochs} epochs" == row["epochs_or_steps"]
        assert run.training.batch_size == int(row["batch"].split()[0])
        assert (run.training.schedule, run.training.warmup_steps) == (row["schedule"], 0)
        assert run.training.weight_decay == float(row["weight_decay"]) == 0
        for key, value in numbers(run).items():
            if row[key]:
                assert value == pytest.approx(float(row[key].split(";")[0])), (row, key)
