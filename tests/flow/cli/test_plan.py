"""`unlearnbench plan` prints runs, work, memory and schedules, and writes nothing."""

import json
import re
from pathlib import Path

import pytest

from ...factories.command_line import Run


def check_warnings(err: str) -> None:
    """Check that only these are printed: the sweep has 2 and 4 forget rows, and low rates."""
    steps, rates = err.splitlines()
    rows = "forget 0.1 (2 rows), forget 0.2 (4 rows)"
    assert steps.startswith(f"warning: training.batch_size 32 holds all forget rows of {rows}: ")
    assert rates.startswith("warning: tiny: learning rates of another order than a model of ")


def test_plan_has_a_line_per_method_and_the_work(run: Run) -> None:
    code, out, err = run("plan", "small.yaml")
    assert code == 0
    check_warnings(err)
    lines = out.splitlines()
    assert lines[0] == "small: 12 runs into runs/small"
    assert lines[1] == "all runs: model tiny, seed 0"
    assert lines[2].split()[:2] == ["forget", "method"]
    assert len(lines) == 3 + 6 + 2 + 1 + 4 + 1
    assert any("npo+nll" in line and "beta=0.5, retain.weight=2.0" in line for line in lines)
    # 2 of 20 rows and 4 of 20: a step an epoch. NPO with a retain term reads both parts.
    assert lines[9] == "training: 24 optimiser steps, 120 rows"
    assert lines[10].startswith("evaluation: 24 evaluations, ")
    assert lines[11] == "models trained first, each once:"
    assert lines[12].startswith("  tiny: tiny base model, 8 epochs of ")
    assert lines[13].startswith("  tiny: start model, on all rows, 10 epochs of ")
    assert [line.split()[3] for line in lines[14:16]] == ["retain90,", "retain80,"]
    pattern = r"estimated time: about \d+ min at the current load \(within a factor of 2\)"
    assert re.fullmatch(pattern, lines[16])
    assert next(line for line in lines if " ce-u " in line).split()[2] == "defaults"
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


def test_plan_counts_evaluations_under_attacks(run: Run) -> None:
    attacks = "attacks={paraphrase: {at: every}, quantization: {codes: [nf4, fp4, int8-weights]}}"
    _, out, err = run("plan", "small.yaml", "--set", attacks)
    check_warnings(err)
    # 12 runs: after each of 2 epochs, and three codes after the last.
    text = " ".join(out.split())
    assert f" under attacks: {12 * (2 + 3)} times, " in text
    assert "likewise (paraphrase, quantization)" in text
    assert "without the training of" not in text, "neither trains anything"
    _, out, _ = run("plan", "small.yaml", "--set", attacks, "--json")
    assert json.loads(out)["work"]["attacked_evaluations"] == 60
    attacks = "attacks={relearning: {at: best, rows: forget, steps: [1]}}"
    _, out, _ = run("plan", "small.yaml", "--set", attacks)
    assert "\nunder attacks: up to 48 times, " in out, "before it, and after a step"
    assert "without the training of" not in out, "its steps are in the time"


def test_plan_counts_the_attackers_of_a_search(run: Run) -> None:
    search = "search: {learning_rate: [1.0e-4, 1.0e-3, 1.0e-2]}, trials: 3"
    attacks = f"attacks={{relearning: {{rows: forget, steps: [1, 2], {search}}}}}"
    _, out, _ = run("plan", "small.yaml", "--set", attacks)
    # 12 runs: before the first step once, and after two steps of three attackers.
    assert f"\nunder attacks: {12 * (1 + 3 * 2)} times, " in out
    assert "likewise (relearning with 3 attackers)" in " ".join(out.split())


def test_plan_names_an_attack_whose_training_it_cannot_know(run: Run) -> None:
    Path("shaken.py").write_text(
        """\
from unlearnbench.api.attack import WeightAttack


class Shaken(WeightAttack):
    label = "Shaken"
    trains = True

    def points(self):
        return ("1",)

    def change(self, model, tools):
        rows = tools.rows.forget
        yield from map(str, tools.fine_tune(model, rows, steps=1, learning_rate=1e-3, batch_size=2))
""",
        encoding="utf-8",
    )
    attacks = "attacks={shaken: {}, relearning: {rows: forget}}"
    code, out, err = run("plan", "small.yaml", "--plugin", "shaken.py", "--set", attacks)
    assert code == 0, err
    assert "(within a factor of 2), without the training of shaken" in " ".join(out.split())


@pytest.mark.parametrize("samples", [20, 200])
def test_metrics_are_tried_on_as_many_samples_as_will_be_drawn(run: Run, samples: int) -> None:
    drawn = f"attacks={{sampling: {{samples: {samples}}}}}"
    metrics = "evaluation.metrics={leak-at-k: {k: 128}, sampling-bounds: {k: 128}}"
    code, _, err = run("plan", "small.yaml", "--set", drawn, "--set", metrics)
    assert (code, err.count("k is 128, and 20 answers")) == ((0, 0) if samples > 128 else (2, 1))


def test_plan_counts_the_runs_of_each_stage(run: Run) -> None:
    search = "search={kind: optuna, trials: 5}"
    rates = "learning_rates={low: 1.0e-5, high: 1.0e-4}"
    both = (
        "--set",
        "seeds=[0, 1, 2]",
        "--set",
        "select={seeds: [0]}",
        "--set",
        "methods=[npo]",
    )
    _, out, _ = run("plan", "small.yaml", *both, "--set", search, "--set", rates)
    lines = out.splitlines()
    assert lines[0] == "small: up to 14 runs into runs/small"
    assert lines[2:5] == [
        "optuna search: 5 settings of each method entry at most, on seeds 0: up to 10 runs",
        "the best of each method by forget-quality, on seeds 1, 2: up to 4 runs",
        "work of the first of these stages:",
    ]
    assert lines[5] == "training: 20 optimiser steps, 60 rows"
    assert "retain model retain80" in out


def test_memory_and_hours_of_each_kind_of_run(run: Run) -> None:
    code, out, _ = run("plan", "small.yaml", "--memory", "--flops", "50e9")
    assert code == 0
    for word in ("gradients", "peak GiB", "hours", "GPU hours", "npo+nll", "assumed: 5e+10 FLOP/s"):
        assert word in out
    code, out, _ = run("plan", "small.yaml", "--memory", "--json")
    memory = json.loads(out)["memory"]
    assert memory["flops"] == 400e12
    kinds = {(kind["model"], kind["method"]): kind for kind in memory["kinds"]}
    assert kinds["tiny", "ce-u"]["runs"] == 4
    one, two = (kinds["tiny", name] for name in ("ce-u", "npo+nll"))
    assert two["memory_mib"]["activations"] >= one["memory_mib"]["activations"] > 0
    assert two["hours"] >= one["hours"] > 0, "both wait for launches"
    assert sum(one["hours_by_work"].values()) == pytest.approx(one["hours"])
    _, out, _ = run("plan", "small.yaml", "--memory", "--json", "--flops", "1e7")
    slow = {(kind["model"], kind["method"]): kind for kind in json.loads(out)["memory"]["kinds"]}
    assert slow["tiny", "npo+nll"]["hours"] > slow["tiny", "ce-u"]["hours"]
    assert memory["unknown"] == []


def test_wall_time_falls_with_more_gpus_and_counts_what_is_prepared(run: Run) -> None:
    wall: list[dict[str, float]] = []
    for gpus in ("1", "4"):
        _, out, _ = run("plan", "small.yaml", "--json", "--gpus", gpus)
        wall.append(json.loads(out)["memory"]["wall_hours"])
        assert wall[-1]["low"] < wall[-1]["likely"] < wall[-1]["high"]
    assert wall[0]["likely"] > wall[1]["likely"] > 20 / 3600
    _, out, _ = run("plan", "small.yaml", "--memory")
    assert "wall time on 1 GPU: about" in out
    _, out, _ = run("plan", "small.yaml", "--gpus", "1", "--set", "resources.gpu=2")
    assert "wall time" not in out, "a run takes two"


def test_plan_says_that_this_machine_has_too_few_gpus(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unlearnbench.models.device.device_count", lambda: 1)
    gpus = ("plan", "small.yaml", "--set", "resources.gpu=2")
    code, out, _ = run(*gpus)
    text = " ".join(out.split())
    assert code == 0
    assert "cannot run here: a run of tiny needs 2 GPUs (resources.gpu), and this machine" in text
    assert "has 1 GPU; take a machine with more" in text
    assert len(json.loads(run(*gpus, "--json")[1])["cannot_run_here"]) == 1
    _, out, _ = run(*gpus, "--set", "ray.address=auto")
    assert "cannot run here" not in out, "a cluster may have them"
    _, out, _ = run("plan", "small.yaml", "--set", "resources.gpu=0.5")
    assert "cannot run here" not in out
