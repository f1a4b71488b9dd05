"""The start model is evaluated beside the retain model, with which its record compares it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.flow.small_run import config_of, runs_of, without_times
from unlearnbench.api import registry
from unlearnbench.config.entries import AttackSpec, attack_spec
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.results.records import EpochResult, Record, read_record
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks

RETAIN = "tiny/retain50@0.5"
AHEAD = "tiny/full@0.5 ahead"
RECORD = "tiny/full@0.5"


def evaluations_of(place: Path, name: str, *, keep_texts: bool = True) -> tuple[Path, list[str]]:
    """A folder without records, and the ids of the evaluations that it needs."""
    config = config_of(place, name=name, keep_texts=keep_texts)
    folder = place / "runs" / name
    tasks = preparation_tasks(config, runs_of(config), folder)
    return folder, [task.id for task in tasks if not task.done]


def carry_out(
    place: Path,
    name: str,
    order: list[str],
    *,
    keep_texts: bool = True,
    attacks: tuple[AttackSpec, ...] = (),
) -> dict[str, Record]:
    """Carry out the evaluations in an order, each as in a process of its own.

    Returns:
        The records by kind.
    """
    config = config_of(place, name=name, keep_texts=keep_texts, attacks=attacks)
    folder = place / "runs" / name
    for id_ in order:
        tasks = {task.id: task for task in preparation_tasks(config, runs_of(config), folder)}
        execute_task(tasks[id_], config, folder)
    found = [read_record(path) for path in (folder / "records").glob("[!.]*")]
    return {record.kind: replace(without_times(record), provenance={}) for record in found}


@pytest.mark.parametrize("keep_texts", [True, False])
def test_the_records_are_the_same_whichever_model_is_evaluated_first(
    place: Path, *, keep_texts: bool
) -> None:
    orders = {
        "before": [AHEAD, RETAIN, RECORD],
        "after": [RETAIN, RECORD],
        "ahead": [RETAIN, AHEAD],
    }
    _, needed = evaluations_of(place, "before", keep_texts=keep_texts)
    assert needed == [RETAIN, AHEAD, RECORD]
    records = {
        name: carry_out(place, name, order, keep_texts=keep_texts) for name, order in orders.items()
    }
    for found in records.values():
        assert found.keys() == {"fine-tuned", "retain"}
        start = found["fine-tuned"]
        assert start.epochs == records["after"]["fine-tuned"].epochs
        assert start.epochs[0].metrics["log10_forget_quality"] is not None
    contents: set[bytes] = set()
    for name in orders:
        (record,) = (
            path
            for path in (place / "runs" / name / "records").iterdir()
            if read_record(path).kind == "fine-tuned"
        )
        contents.add((record / "epoch-0.safetensors").read_bytes())
    assert len(contents) == 1, "the observations are equal, bit by bit"
    for name in orders:
        _, needed = evaluations_of(place, name, keep_texts=keep_texts)
        assert needed == [], "nothing is left to do"
        assert not [*(place / "runs" / name).glob("state/*")], "nor to remove"


def test_an_evaluation_that_is_stored_is_not_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = evaluations_of(place, "kept")
    carry_out(place, "kept", [AHEAD])
    assert not (folder / "records").exists(), "the record needs the retain model"
    _, needed = evaluations_of(place, "kept")
    assert needed == [RETAIN, RECORD]
    carry_out(place, "kept", [RETAIN])

    def evaluate(*_: object, **__: object) -> None:
        raise AssertionError("it is stored")

    monkeypatch.setattr("unlearnbench.runs.prerequisites.model_evaluation", evaluate)
    records = carry_out(place, "kept", [RECORD])
    assert records["fine-tuned"].epochs[0].metrics["model_utility"] is not None


def test_the_record_waits_for_both_evaluations_and_they_for_nothing_else(place: Path) -> None:
    config = config_of(place, name="new", cache=str(place / "empty"))
    tasks = preparation_tasks(config, runs_of(config), place / "runs" / "new")
    rows = {task.target: task.rows for task in tasks if task.fraction is None}
    assert rows["full"] > rows["retain50"] > 0, "so that the start model comes first"
    after = {task.id: set(task.after) for task in tasks}
    assert after[RETAIN] == {"tiny/retain50"}
    assert after[AHEAD] == {"tiny/full"}
    assert after[RECORD] == {"tiny/full", RETAIN, AHEAD}
    assert PreparationTask("", (), "tiny", "full", 0.5, is_ahead=True).id == AHEAD


UNDER = " under relearning"


def attacks() -> tuple[AttackSpec, ...]:
    settings = registry.load("attacks", "relearning")(learning_rate=1e-3, steps=(1, 2))
    return (attack_spec("relearning", settings),)


def test_both_models_are_attacked_side_by_side_with_the_same_records(place: Path) -> None:
    orders = {
        "together": [RETAIN, RECORD, f"{RECORD}{UNDER} ahead", RETAIN + UNDER, RECORD + UNDER],
        "in-turn": [RETAIN, RECORD, RETAIN + UNDER, RECORD + UNDER],
    }
    config = config_of(place, name="together", attacks=attacks())
    tasks = preparation_tasks(config, runs_of(config), place / "runs" / "together")
    after = {task.id: set(task.after) for task in tasks}
    assert RETAIN + UNDER not in after[f"{RECORD}{UNDER} ahead"]
    assert after[RECORD + UNDER] > {RETAIN + UNDER, f"{RECORD}{UNDER} ahead"}

    contents: dict[str, list[bytes]] = {}
    attacked: dict[str, list[EpochResult]] = {}
    for name, order in orders.items():
        carry_out(place, name, order, attacks=attacks())
        folder = place / "runs" / name
        records = [read_record(path) for path in (folder / "records").iterdir()]
        (record,) = (one for one in records if one.kind == "fine-tuned" and one.attacked)
        variants = [result.variant for result in record.attacked]
        assert variants == ["relearning@0", "relearning@1", "relearning@2"]
        attacked[name] = [replace(result, evaluation_seconds=0.0) for result in record.attacked]
        files = sorted((folder / "records" / record.id).glob("*.safetensors"))
        contents[name] = [file.read_bytes() for file in files]
        assert not [*folder.glob("state/*")]
    assert attacked["together"] == attacked["in-turn"]
    # Without the retain model's record under the attack, there would be no such number.
    assert attacked["together"][0].metrics["log10_forget_quality"] is not None
    assert len(contents["together"]) == 3
    assert contents["together"] == contents["in-turn"]
