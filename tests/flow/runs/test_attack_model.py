"""Runs, start and retain models under attacks: results of their own, the same after any restart."""

import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.attacks.relearning import Relearning
from unlearnbench.config.entries import attack_spec
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.schema import EvaluationSettings, MethodGrid
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.results.effort import effort_of
from unlearnbench.results.finalize import (
    _read_file,  # pyright: ignore[reportPrivateUsage]
    table_of,
)
from unlearnbench.results.records import (
    EpochResult,
    Record,
    StoredFile,
    read_record,
    read_records,
)
from unlearnbench.runs import attack_model, workspace
from unlearnbench.runs import run as run_module
from unlearnbench.runs.run import run_epochs, run_single
from unlearnbench.training.fine_tuning import FineTuner

from ...forked import start, wait
from ..small_run import config_of, runs_of, without_times

NOISE = '''
import torch
from unlearnbench.api import WeightAttack


class Noise(WeightAttack):
    """Adds noise to every weight."""

    label = "Noise"
    seed: int = 0

    def points(self):
        return ("0", "1", "10")

    def change(self, model, tools):
        noise = torch.Generator().manual_seed(self.seed)
        for scale in (0.0, 1e-4, 1e-2):
            for weight in model.parameters():
                weight.data += scale * torch.randn(weight.shape, generator=noise)
            yield f"{scale * 1000:.0f}" if scale > 1e-3 else str(int(scale > 0))
'''


@pytest.fixture
def noise(tmp_path: Path) -> str:
    (tmp_path / "noise.py").write_text(NOISE)
    return registry.register_file(tmp_path / "noise.py")


def specs(*names: str, **settings: Any) -> tuple[Any, ...]:
    return tuple(attack_spec(n, registry.load("attacks", n)(**settings)) for n in names)


def timeless(results: tuple[EpochResult, ...]) -> list[EpochResult]:
    return [replace(one, training_seconds=0, evaluation_seconds=0) for one in results]


def run(folder: Path, **changes: Any) -> Record:
    config = config_of(folder, **changes)
    (spec,) = runs_of(config)
    return run_single(spec, config, folder / "runs" / "small", lambda _: None)


def test_a_run_under_attacks_has_the_plain_results_and_more(place: Path, noise: str) -> None:
    plain = run(place)
    attacks = specs(noise, "paraphrase")
    record = run(place, attacks=attacks)
    assert record.id != plain.id
    assert without_times(record).epochs == without_times(plain).epochs
    assert [(one.epoch, one.variant) for one in record.attacked] == [
        (3, "noise@0"),
        (3, "noise@1"),
        (3, "noise@10"),
        (3, "paraphrase"),
    ]
    metrics = {one.variant: one.metrics for one in record.attacked}
    name = "probability_forget"
    assert metrics["noise@0"][name] == pytest.approx(plain.epochs[-1].metrics[name])
    assert metrics["noise@0"][name] != metrics["noise@10"][name]
    assert metrics["noise@0"]["model_utility"] is None, "the forget set alone is evaluated"
    stored = read_record(place / "runs" / "small" / "records" / record.id)
    assert stored == record
    asked = stored.attacked_evaluations[3, "paraphrase"].sets["forget"]
    assert asked.questions == stored.evaluations[3].sets["forget"].questions
    assert (asked.answer_loss != stored.evaluations[3].sets["forget"].answer_loss).any()


def test_optimisers_have_no_memory_left_under_the_last_attack(
    place: Path, noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[int] = []

    def counted(optimizers: Sequence[Any]) -> AbstractContextManager[None]:
        states.append(sum(len(optimizer.state) for optimizer in optimizers))
        return nullcontext()

    monkeypatch.setattr(run_module, "on_host", counted)
    run(place, attacks=specs(noise))
    assert states == [0]


def test_the_retain_and_start_models_go_through_the_same_attack(place: Path, noise: str) -> None:
    record = run(place, attacks=specs(noise))
    records = read_records(place / "runs" / "small")
    attacked = {one.kind: one for one in records if one.attacked and one.kind != "run"}
    assert attacked.keys() == {"fine-tuned", "retain"}
    assert all(not one.epochs and one.spec["attack"]["name"] == noise for one in attacked.values())
    of_retain = attacked["retain"].attacked[0].metrics
    assert of_retain["log10_forget_quality"] == 0.0, "compared with itself"
    assert record.attacked[0].metrics["log10_forget_quality"] is not None
    assert attacked["fine-tuned"].attacked[0].metrics["log10_forget_quality"] is not None
    rows = table_of(records).rows
    assert {row.variant for row in rows} == {""}
    assert len(rows) == 5, "two models and three epochs"
    under = table_of(records).attacked
    assert [(row.kind, row.variant) for row in under] == [
        (kind, f"noise@{point}")
        for kind in ("fine-tuned", "retain", "run")
        for point in ("0", "1", "10")
    ]
    assert table_of([one for one in records if not one.attacked]).attacked == ()
    before = {one.id for one in records}
    run(place, attacks=specs(noise, "paraphrase"))
    after = read_records(place / "runs" / "small")
    fresh = [one for one in after if one.id not in before and one.kind != "run"]
    assert [set(one.variant for one in r.attacked) for r in fresh] == [{"paraphrase"}] * 2


@pytest.mark.parametrize(("at", "expected"), [("every", [1, 2, 3]), ("best", None)])
def test_epochs_are_attacked_as_asked(
    place: Path, noise: str, at: str, expected: list[int] | None
) -> None:
    record = run(place, attacks=specs(noise, at=at))
    epochs = sorted({one.epoch for one in record.attacked})
    if expected is None:
        quality = [one.metrics["log10_forget_quality"] for one in record.epochs]
        assert None not in quality
        expected = [i + 1 for i, one in enumerate(quality) if one == max(quality[: i + 1])]  # type: ignore[type-var]
    assert epochs == expected
    assert without_times(record).epochs == without_times(run(place)).epochs, "training goes on"


KILLED = """
import os, signal, sys
from pathlib import Path
from unlearnbench.api import registry
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.runs import checkpoints
from unlearnbench.runs import run as run_module
from unlearnbench.runs.run import run_epochs

checkpoints.COST = 0.0  # a checkpoint however long it takes: finished attacks are kept with it
noise, config, spec, folder = sys.argv[1:]
registry.register_file(noise)
evaluate = run_module.results_under

def cut(*args, **how):
    for result, evaluation in evaluate(*args, **how):
        if result.variant == "noise@1":
            os.kill(os.getpid(), signal.SIGKILL)
        yield result, evaluation

run_module.results_under = cut
read = lambda kind, file: kind.model_validate_json(Path(file).read_text())
list(run_epochs(read(RunSpec, spec), read(SweepConfig, config), Path(folder)))
"""


@pytest.mark.long
def test_an_attack_that_is_killed_goes_on_with_the_same_numbers(
    place: Path, noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(place, attacks=specs("paraphrase", noise))
    (spec,) = runs_of(config)
    folder = place / "runs" / "small"
    whole = run(place, attacks=config.attacks)
    shutil.rmtree(folder / "records" / spec.id)
    files = [tmp_path / "config.json", tmp_path / "spec.json"]
    for file, value in zip(files, (config, spec), strict=True):
        file.write_text(value.model_dump_json())
    words = [tmp_path / "noise.py", *files, folder]
    assert wait([start(KILLED, [*map(str, words)])]) == [-signal.SIGKILL]
    assert not (folder / "records" / spec.id).exists()

    workspace.clear_workspaces()
    evaluate, done = attack_model.results_under, list[str]()

    def watched(*args: Any, **how: Any) -> Iterator[Any]:
        for result, evaluation in evaluate(*args, **how):
            done.append(result.variant)
            yield result, evaluation

    monkeypatch.setattr(run_module, "results_under", watched)
    list(run_epochs(spec, config, folder))
    again = read_record(folder / "records" / spec.id)
    assert timeless(again.attacked) == timeless(whole.attacked)
    assert without_times(again).epochs == without_times(whole).epochs
    assert done == ["noise@0", "noise@1", "noise@10"], "a finished attack is not repeated"


def searching() -> tuple[Any, ...]:
    """Relearning with two attackers, that are evaluated after two steps."""
    search = {"learning_rate": (1e-3, 1e-2)}
    attack = Relearning.model_validate(
        {"rows": "forget", "steps": (1, 2), "batch_size": 2, "search": search, "trials": 2}
    )
    return (attack_spec("relearning", attack),)


@pytest.mark.long
def test_a_search_that_is_cut_short_goes_on_with_the_same_numbers(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(place, attacks=searching())
    (spec,) = runs_of(config)
    folder = place / "runs" / "small"
    whole = run(place, attacks=config.attacks)
    points = ("0", "t1.1", "t1.2", "t2.1", "t2.2")
    variants = [f"relearning@{point}{part}" for point in points for part in ("", ".choice")]
    assert [one.variant for one in whole.attacked] == variants
    table = table_of(read_records(folder))
    shutil.rmtree(folder / "records" / spec.id)
    evaluate = attack_model.results_under

    def cut(*args: Any, **how: Any) -> Iterator[Any]:
        for result, evaluation in evaluate(*args, **how):
            if result.variant == "relearning@t2.1":
                raise KeyboardInterrupt
            yield result, evaluation

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "results_under", cut)
        with pytest.raises(KeyboardInterrupt):
            list(run_epochs(spec, config, folder))
    assert not (folder / "records" / spec.id).exists()
    list(run_epochs(spec, config, folder))
    again = read_record(folder / "records" / spec.id)
    assert timeless(again.attacked) == timeless(whole.attacked)
    assert without_times(again).epochs == without_times(whole).epochs
    assert table_of(read_records(folder)).attacked == table.attacked


def test_a_plan_counts_the_work_of_a_search(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many steps as the attackers do, and as many questions as both parts of the rows have."""
    config = config_of(place, attacks=searching())
    (spec,) = runs_of(config)
    effort = effort_of(spec, load_benchmark(config.data, config.split_keys))
    run(place, attacks=config.attacks)
    steps: list[int] = []
    fine_tune = FineTuner.__call__

    def counted(tuner: FineTuner, *args: Any, **how: Any) -> Iterator[int]:
        for step in fine_tune(tuner, *args, **how):
            steps.append(step)
            yield step

    monkeypatch.setattr(FineTuner, "__call__", counted)
    shutil.rmtree(place / "runs" / "small" / "records" / spec.id)
    record = run(place, attacks=config.attacks)
    assert len(steps) == effort.attacks.steps == 4
    assert effort.attacked == 5
    asked = [
        len(observed.questions)
        for evaluation in record.attacked_evaluations.values()
        for observed in evaluation.sets.values()
    ]
    assert sum(asked) == pytest.approx(effort.attacks.evaluations * effort.questions)


def records_read_for(records: Sequence[Record], metrics: Any = None) -> set[str]:
    """Kinds of the records whose observations are read for a table."""
    kinds = {record.id: record.kind for record in records}
    read: set[str] = set()
    plain: Any = StoredFile.read

    def reads(self: StoredFile) -> Any:
        read.add(kinds[self.path.parent.name.partition(".")[0]])
        return plain(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredFile, "read", reads)
        patch.setattr("unlearnbench.results.finalize._computed_here", {})
        _read_file.cache_clear()
        table_of(records, metrics)
    return read


def test_records_say_by_what_their_numbers_were_computed(place: Path, noise: str) -> None:
    """So only retain models are computed again: the start models were evaluated after them."""
    metrics: Any = {"mia-min-k": {"share": 0.3}}
    evaluation = EvaluationSettings(rows=4, max_length=96, metrics=metrics)
    run(place, attacks=specs(noise), evaluation=evaluation)
    folder = place / "runs" / "small"
    records = read_records(folder)
    assert records_read_for(records) == {"retain", "fine-tuned"}
    assert records_read_for(records, metrics) == {"retain", "fine-tuned"}
    assert records_read_for([r for r in records if r.kind == "run"]) == {"run"}
    table = table_of(records)
    retain = [row for row in (*table.rows, *table.attacked) if row.kind == "retain"]
    assert all(row.metrics["forgotten"] is not None for row in retain)
    assert table.notes == ()


WORDS = '''
import numpy as np
from unlearnbench.api.metric import Metric

class Words(Metric):
    """Words of an answer."""

    factor: float = 1.0
    label, bounds = "Words", (0.0, 1e9)
    roles = frozenset({"forget"})

    def per_example(self, seen):
        words = [1 + len(text.split()) for text in seen.generated]
        return self.factor * np.array(words, dtype=float)
'''


@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_a_run_that_goes_on_has_todays_numbers_also_under_attacks(
    place: Path, noise: str, tmp_path: Path
) -> None:
    (tmp_path / "words.py").write_text(WORDS)
    registry.register_file(tmp_path / "words.py")

    def config(factor: float) -> Any:
        metrics: Any = {"words": {"factor": factor}}
        evaluation = EvaluationSettings(rows=4, max_length=96, metrics=metrics)
        return config_of(place, attacks=specs(noise, at="every"), evaluation=evaluation)

    folder, (spec,) = place / "runs" / "small", runs_of(config(1.0))
    fresh = run_single(spec, config(1.0), folder, lambda _: None)
    shutil.rmtree(folder / "records" / spec.id)
    interrupted = run_epochs(spec, config(2.0), folder)
    next(interrupted)
    next(interrupted)
    del interrupted
    again = run_single(spec, config(1.0), folder, lambda _: None)
    assert timeless(again.attacked) == timeless(fresh.attacked)
    assert len(again.attacked) == 9


def test_a_method_at_inference_time_is_bypassed_by_who_holds_the_weights(
    place: Path, tmp_path: Path, noise: str
) -> None:
    (tmp_path / "white_noise.py").write_text(
        NOISE.replace("class Noise", "class WhiteNoise").replace(
            'label = "Noise"', 'label = "Noise"\n    white_box = True'
        )
    )
    white = registry.register_file(tmp_path / "white_noise.py")
    eco = (MethodGrid(specs=(method_spec("eco", {}),)),)
    record = run(place, methods=eco, attacks=specs(noise, white))
    start = next(
        one
        for one in read_records(place / "runs" / "small")
        if one.kind == "fine-tuned" and any(r.variant == "white-noise@0" for r in one.attacked)
    )
    found = {one.variant: one.metrics["probability_forget"] for one in record.attacked}
    models = {one.variant: one.metrics["probability_forget"] for one in start.attacked}
    assert found["white-noise@0"] == models["white-noise@0"], "the start model's"
    assert found["noise@0"] == pytest.approx(record.epochs[0].metrics["probability_forget"])
    assert found["noise@0"] != models["white-noise@0"]
