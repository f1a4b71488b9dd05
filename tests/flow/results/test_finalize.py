"""Each number is computed once, by one rule, wherever and whenever a table is made."""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.factories.random_folders import draw, write
from tests.factories.recorder import DATA, Recorder, World
from tests.factories.rows import RowPlan, rows_of
from tests.factories.tables import read_csv
from unlearnbench.analysis.results import Results
from unlearnbench.api import registry
from unlearnbench.api.metric import EvaluatedModel
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import make_plan
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.schema import SweepConfig
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.report.report import finish
from unlearnbench.results.finalize import finalize, references_of, table_of
from unlearnbench.results.known_faults import was_not_restored
from unlearnbench.results.moved_numbers import MovedNumbers
from unlearnbench.results.records import Record, read_records, write_record
from unlearnbench.results.rules import rules_of
from unlearnbench.results.stored_table import TABLE_FILE, StoredTable, read_table
from unlearnbench.results.sweep_folder import claim_folder
from unlearnbench.results.table import Numbers, TableRow

from ...made_up_numbers import write_with_made_up_numbers

Recorded = Callable[[str, dict[str, float | None]], dict[str, float | None]]
Change = Mapping[str, Any]
FEW = range(4)
"""Numbers of the random folders that every run of the tests makes."""


def a_config(root: Path, evaluation: Change | None = None) -> SweepConfig:
    """A sweep of two methods, with an attack that trains."""
    document = {
        "name": "sweep",
        "output": str(root),
        "data": {"source": "synthetic", "authors": 10},
        "models": [{"name": "tiny", "base": "tiny"}],
        "forget_fractions": [0.2],
        "methods": [{"method": "npo"}, {"method": "ce-u"}],
        "learning_rates": [1e-4],
        "seeds": [0],
        "epochs": 2,
        "attacks": {"relearning": {"steps": [1]}},
        "evaluation": evaluation or {},
    }
    path = root / "sweep.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return load_config(str(path))


def a_folder(
    root: Path,
    *,
    recorded: Recorded | None = None,
    evaluation: Change | None = None,
    earlier: Change | None = None,
) -> Path:
    """Write the folder of a finished sweep.

    Args:
        root: Where to write it.
        recorded: What a record has in place of its numbers, by its id.
        evaluation: Section of the configuration.
        earlier: Metrics that the configuration named when the records were made.
    """
    config = a_config(root, evaluation)
    rows = {split: rows_of("synthetic", split, RowPlan(count=8)) for split in config.split_keys}
    folder = root / config.name
    recorder = Recorder(config, World(rows), folder, metrics=earlier, recorded=recorded)
    recorder.write_references()
    plan = replace(make_plan(config, DATA), references=recorder.reference_ids())
    for run in plan.runs:
        recorder.write_run(run)
    claim_folder(plan)
    return folder


def reported(folder: Path) -> list[dict[str, str]]:
    """Write the report, and return all rows, plain and under attacks."""
    finish(folder)
    return [*read_csv(folder / "results.csv"), *read_csv(folder / "attacks.csv")]


@pytest.fixture(autouse=True)
def no_files_of_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_files", {})


# The definition


def evaluations_of(record: Record) -> Iterator[tuple[int, str, Evaluation]]:
    for epoch, evaluation in record.evaluations.items():
        yield epoch, "", evaluation
    for (epoch, variant), evaluation in record.attacked_evaluations.items():
        yield epoch, variant, evaluation


def by_definition(
    records: Iterable[Record], config: SweepConfig
) -> dict[tuple[str, int, str], dict[str, float | None]]:
    """Compute all numbers as the definition says: `MetricPlan.values` of the three models."""
    records = list(records)
    profile, chosen = profile_of(config.evaluation), config.evaluation.metrics
    plan = plan_of(profile, config.data, chosen, config.references)
    references: dict[tuple[Any, ...], EvaluatedModel] = {}
    for record in records:
        if record.kind != "run":
            for _, variant, evaluation in evaluations_of(record):
                references[record.kind, *record.panel, variant] = evaluated(plan, evaluation)
    return {
        (record.id, epoch, variant): plan.values(
            evaluation.sets,
            references.get(("retain", *record.panel, variant)),
            references.get(("fine-tuned", *record.panel, variant)),
        )
        for record in records
        for epoch, variant, evaluation in evaluations_of(record)
    }


def evaluated(plan: MetricPlan, evaluation: Evaluation) -> EvaluatedModel:
    return EvaluatedModel(evaluation.sets, plan.values(evaluation.sets))


def numbers_of(rows: Iterable[TableRow]) -> dict[tuple[str, int, str], dict[str, float]]:
    """The numbers that are defined."""
    return {
        (row.run_id, row.epoch, row.variant): {
            name: value for name, value in row.metrics.items() if value is not None
        }
        for row in rows
    }


def check_random_folder(number: int, root: Path) -> None:
    made = write(draw(number), root)
    rng = random.Random(number)
    results = Results.read(made.folder)
    table = results.table
    # A run that failed has only the numbers that it reported.
    reported_only = {
        (record.id, result.epoch, ""): result.metrics
        for record in results.records
        for result in record.epochs
        if result.epoch not in record.evaluations
    }
    by_place = by_definition(results.records, made.config) | reported_only
    expected = {
        place: {name: value for name, value in values.items() if value is not None}
        for place, values in by_place.items()
    }
    computed = numbers_of((*table.rows, *table.attacked))
    assert computed.keys() == expected.keys()
    for place, numbers in expected.items():
        assert computed[place] == pytest.approx(numbers, rel=1e-12, nan_ok=True), place

    rules = rules_of(results.records, results.table.metrics)
    rows = (*table.rows, *table.attacked, *table.before)
    every = {row.key: Numbers(row.metrics) for row in rows if row.key}
    without_key = {(row.run_id, row.epoch, "") for row in rows if not row.key}
    assert without_key == reported_only.keys()
    for share in (0.0, 0.3, 0.7, 1.0):
        some = {key: numbers for key, numbers in every.items() if rng.random() < share}
        shuffled = rng.sample(results.records, len(results.records))
        again = finalize(shuffled, rules, StoredTable(by_key=some))
        assert (again.rows, again.attacked) == (table.rows, table.attacked)
        assert again.before == table.before
        assert [row.key for row in again.rows] == [row.key for row in table.rows]

    finish(made.folder)
    stored = read_table(made.folder)
    assert stored.by_key.keys() == every.keys()
    again = finalize(results.records, rules, stored)
    assert (again.rows, again.attacked) == (table.rows, table.attacked)
    assert again.before == table.before
    assert again.notes == table.notes


@pytest.mark.parametrize("number", FEW)
def test_all_numbers_are_by_definition_whatever_is_known(number: int, tmp_path: Path) -> None:
    check_random_folder(number, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(FEW), 100))
def test_all_numbers_of_many_folders_are_by_definition(number: int, tmp_path: Path) -> None:
    check_random_folder(number, tmp_path)


# What a number must not depend on


def test_the_retain_model_has_its_numbers_under_an_attack(tmp_path: Path) -> None:
    """It is evaluated before the start model that some of them are relative to."""
    rows = reported(a_folder(tmp_path))
    of_retain = [row for row in rows if row["kind"] == "retain"]
    assert [row.get("variant", "") for row in of_retain] == ["", "relearning@0", "relearning@1"]
    for name in ("forgotten", "memorization_score_ou"):
        assert all(row[name] for row in of_retain), name
    assert of_retain[0]["kept"]


def test_a_metric_newer_than_the_records_has_numbers_under_attacks(tmp_path: Path) -> None:
    def older(_: str, values: dict[str, float | None]) -> dict[str, float | None]:
        return {name: value for name, value in values.items() if "exact_memo" not in name}

    rows = reported(a_folder(tmp_path, recorded=older))
    assert all(row["exact_memorization_forget"] for row in rows)


def test_metrics_with_other_settings_are_computed_again_under_attacks(tmp_path: Path) -> None:
    file = tmp_path / "words.py"
    file.write_text(WORDS, encoding="utf-8")
    registry.register_file(file)
    now = {"metrics": {"words": {"factor": 0.5}}}
    before = {"words": {"factor": 2.0}}
    changed = reported(a_folder(tmp_path / "a", evaluation=now, earlier=before))
    fresh = reported(a_folder(tmp_path / "b", evaluation=now))
    for name in ("words_forget", "rouge_forget", "forgotten"):
        assert [row[name] for row in changed] == [row[name] for row in fresh], name
    assert all(row["words_forget"] for row in changed)
    assert Results.read(tmp_path / "a" / "sweep").table.notes == (), "the user has asked for it"


WORDS = '''
"""A metric in a file of its own."""
import numpy as np
from unlearnbench.api.metric import Metric

class Words(Metric):
    """Words of an answer."""

    factor: float = 1.0
    label, bounds = "Words", (0.0, 1e9)
    roles = frozenset({"forget"})

    def per_example(self, seen):
        """Count."""
        words = [len(text.split()) for text in seen.generated]
        return self.factor * np.array(words, dtype=float)
'''


def test_a_plugin_that_changed_half_way_gives_one_column_of_one_definition(tmp_path: Path) -> None:
    file = tmp_path / "words.py"
    file.write_text(WORDS, encoding="utf-8")
    registry.register_file(file)

    def characters_of_some(record: str, values: dict[str, float | None]) -> Any:
        words = values["words_forget"]
        if words is not None and int(record, 16) % 2 == 0:
            return values | {"words_forget": 10 * words}
        return values

    mixed = reported(a_folder(tmp_path / "a", recorded=characters_of_some))
    fresh = reported(a_folder(tmp_path / "b"))
    assert [row["words_forget"] for row in mixed] == [row["words_forget"] for row in fresh]
    note = next(line for line in Results.read(tmp_path / "a" / "sweep").warnings if "moved" in line)
    assert "Words, forget by up to " in note
    assert "rouge" not in note


def test_a_comment_in_a_plugin_computes_nothing_again(
    tmp_path: Path, read_files: list[str]
) -> None:
    file = tmp_path / "words.py"
    file.write_text(WORDS, encoding="utf-8")
    registry.register_file(file)
    folder = a_folder(tmp_path)
    first = reported(folder)
    read_files.clear()
    file.write_text(WORDS.replace("Count.", "Count them all.") + "# A comment.\n", encoding="utf-8")
    registry.register_file(file)
    assert Results.read(folder).table.notes == ()
    assert read_files == []
    changed = WORDS.replace("len(text.split())", "2 * len(text.split())")
    file.write_text(changed, encoding="utf-8")
    registry.register_file(file)
    second = reported(folder)
    for before, after in zip(first, second, strict=True):
        assert float(after["words_forget"]) == 2 * float(before["words_forget"])
        assert after["rouge_forget"] == before["rouge_forget"]


def test_the_code_of_an_installed_metric_counts(tmp_path: Path) -> None:
    """A package that was upgraded in place: its version need not have changed."""
    package = tmp_path / "site" / "lengths"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "counting.py").write_text("def count(text):\n    return len(text)\n")
    metric = WORDS.replace("class Words", "from .counting import count\n\nclass Words")
    (package / "words.py").write_text(metric.replace("len(text.split())", "count(text)"))
    about = tmp_path / "site" / "lengths-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lengths\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[unlearnbench.metrics]\nwords = lengths.words\n")
    folder = a_folder(tmp_path)

    def rows_of_a_new_process() -> list[dict[str, str]]:
        paths = [str(tmp_path / "site"), *filter(None, sys.path)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", "unlearnbench", "report", str(folder)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return read_csv(folder / "results.csv")

    first = rows_of_a_new_process()
    (package / "counting.py").write_text("def count(text):\n    return 3 * len(text)\n")
    second = rows_of_a_new_process()
    assert [float(row["words_forget"]) for row in second] == [
        3 * float(row["words_forget"]) for row in first
    ]


def test_a_reported_folder_is_read_without_its_observations(
    tmp_path: Path, read_files: list[str]
) -> None:
    """Also undefined numbers of the retain model, and beside any other plug-in."""
    folder = a_folder(tmp_path)
    before = reported(folder)
    other = WORDS.replace('roles = frozenset({"forget"})', "")  # applies only if it is named
    (tmp_path / "other.py").write_text(other, encoding="utf-8")
    registry.register_file(tmp_path / "other.py")
    read_files.clear()
    table = Results.read(folder).table
    assert read_files == []
    assert len(before) == len(table.rows) + len(table.attacked)


# Records that say how their numbers were computed


def test_recorded_numbers_are_taken_as_long_as_their_inputs_are_the_same(
    tmp_path: Path, read_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = read_records(a_folder(tmp_path / "made"))
    marked = [with_number(record, "rouge_forget", 0.125) for record in records]
    written = write_with_made_up_numbers(marked, tmp_path / "marked")
    read_files.clear()
    table = table_of(written)
    assert {row.metrics["rouge_forget"] for row in (*table.rows, *table.attacked)} == {0.125}
    assert read_files == []

    # Without the retain model, the numbers are relative to nothing.
    left = [record for record in written if record.kind != "retain"]
    assert all(row.metrics["rouge_forget"] != 0.125 for row in table_of(left).rows)

    monkeypatch.setattr("unlearnbench.results.rules.own_code", lambda: "other code")
    changed = table_of(written)
    assert numbers_of(changed.rows) == numbers_of(table_of(records).rows)
    (note,) = changed.notes
    assert "ROUGE-L, forget by up to " in note


def with_number(record: Record, column: str, value: float) -> Record:
    def changed(results: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(replace(r, metrics={**r.metrics, column: value}) for r in results)

    return replace(record, epochs=changed(record.epochs), attacked=changed(record.attacked))


# Notes


def test_numbers_that_moved_are_told_until_the_rules_change_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(_: str, values: dict[str, float | None]) -> dict[str, float | None]:
        kept = values["model_utility"]
        return values | {"model_utility": None if kept is None else kept - 0.25}

    folder = a_folder(tmp_path, recorded=older)
    (note,) = Results.read(folder).table.notes
    assert "Model Utility by up to 0.25 in 6 rows" in note, "in the words of the page"
    finish(folder)
    assert note in Results.read(folder).warnings, "also by the stored table"
    finish(folder)
    assert note in json.loads((folder / TABLE_FILE).read_text(encoding="utf-8"))["notes"]
    assert "numbers have moved since" in (folder / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr("unlearnbench.results.rules.own_code", lambda: "other code")
    assert Results.read(folder).table.notes == (), "nothing differs from what was shown last"


def test_a_note_on_many_moved_columns_names_some_and_says_where_all_are() -> None:
    moved = MovedNumbers()
    before = {f"column_{number}": 1.0 for number in range(10)}
    moved.add(before, dict.fromkeys(before, 0.5))
    note = moved.note({"column_9": "Utility", "other": "Another", "column_8": "Words, forget"})
    assert "Utility by up to 0.5 in 1 row; Words, forget by up to 0.5 in 1 row; column_0 by" in note
    assert note.count(" by up to 0.5 in 1 row") == 8
    assert note.endswith("; and 2 more columns (table.json has all)")
    assert len(moved.to_json()) == 10
    assert MovedNumbers().note({}) == ""


def test_numbers_that_move_back_to_the_recorded_ones_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that was changed and changed back: what was shown last is not what is shown now."""
    records = read_records(a_folder(tmp_path / "made"))
    folder = tmp_path / "marked"
    write_with_made_up_numbers((with_number(r, "rouge_forget", 2.0) for r in records), folder)
    assert Results.read(folder).table.notes == ()
    with monkeypatch.context() as patch:
        patch.setattr("unlearnbench.results.rules.own_code", lambda: "other code")
        finish(folder)
    (note,) = Results.read(folder).table.notes
    assert re.search(f"ROUGE-L, forget by up to [0-9.]+ in {len(reported(folder))} rows", note)


def test_an_observation_by_other_code_has_a_note(tmp_path: Path) -> None:
    """Only an evaluation of the model could make it again."""
    file = Path(__file__).parents[2] / "contracts" / "rank.py"
    registry.register_file(file)
    folder = a_folder(tmp_path)
    records = read_records(folder)
    today = rules_of(records).of(records[0]).observing
    assert today.keys() == {"rank"}
    made = [replace(r, provenance={**r.provenance, "observed_by": today}) for r in records]
    assert table_of(made).notes == ()
    made[0] = replace(made[0], provenance={"observed_by": {"rank": "other code"}})
    (note,) = table_of(made).notes
    assert note.startswith(f"rank: its code has changed since 1 of {len(made)} records")


RELEARNING = {"name": "relearning", "settings": {"at": "last", "search": None}}
SEARCHED = {"name": "relearning", "settings": {"at": "last", "search": {"learning_rate": {}}}}
QUANTIZATION = {"name": "quantization", "settings": {"at": "every"}}


def at(when: str) -> dict[str, Any]:
    """The attack that trains, at other epochs."""
    return {"name": "relearning", "settings": {"at": when}}


@pytest.mark.parametrize(
    ("origin", "spec", "is_noted"),
    [
        ({}, {}, True),
        ({"versions": {}}, {}, True),
        ({"versions": None}, {}, True),
        ({"versions": {"unlearnbench": "0.3.0"}}, {}, True),
        ({"versions": {"unlearnbench": "0.4.0+local"}}, {}, True),
        ({"versions": {"unlearnbench": "0.4.1"}}, {}, False),
        ({"device": "NVIDIA H100"}, {}, False),
        ({"device": None}, {}, False),
        ({"processes": 1}, {}, False),
        ({"processes": None}, {}, False),
        ({}, {"attacks": []}, False),
        ({}, {"attacks": [RELEARNING]}, False),
        ({}, {"attacks": [RELEARNING], "after": "the run before"}, True),
        ({}, {"attacks": [SEARCHED]}, True),
        ({}, {"attacks": [at("best")]}, True),
        ({}, {"attacks": [QUANTIZATION]}, False),
        ({}, {"attacks": [{**RELEARNING, "name": "not-installed"}, QUANTIZATION]}, False),
        ({}, {"attacks": [QUANTIZATION, RELEARNING]}, True),
    ],
    ids=str,
)
def test_a_run_whose_weights_were_not_restored_is_recognised(
    origin: Change, spec: Change, is_noted: bool, tmp_path: Path
) -> None:
    run = next(each for each in read_records(a_folder(tmp_path)) if each.kind == "run")
    before = {"processes": 2, "device": "cpu", "versions": {"unlearnbench": "0.4.0"}}
    made = replace(
        run,
        provenance={**before, **origin},
        spec={**run.spec, "attacks": [at("every")], **spec},
    )
    assert was_not_restored(made) is is_noted


def test_runs_whose_weights_were_not_restored_are_counted_in_a_note(tmp_path: Path) -> None:
    records = [*read_records(a_folder(tmp_path))]
    runs = [index for index, record in enumerate(records) if record.kind == "run"]
    assert table_of(records).notes == ()
    origin = {"processes": 2, "device": "cpu", "versions": {"unlearnbench": "0.4.0"}}
    for index in runs:
        spec = {**records[index].spec, "after": "the run before"}
        records[index] = replace(records[index], provenance=origin, spec=spec)
    (note,) = table_of(records).notes
    first = min(records[index].id for index in runs)
    assert note.startswith(
        f"numbers of {len(runs)} of {len(records)} records ({first} for one) may be wrong"
    )


def test_a_damaged_file_leaves_the_recorded_numbers_and_a_note(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    records = read_records(folder)
    run = next(record for record in records if record.kind == "run")
    (folder / "records" / run.id / "epoch-1.safetensors").write_bytes(b"damaged")
    table = table_of(records)
    (note,) = table.notes
    assert note.startswith("numbers of 1 evaluations are shown as recorded, because they cannot be")
    assert f"record {run.id}, epoch 1: " in note
    row = next(row for row in table.rows if (row.run_id, row.epoch) == (run.id, 1))
    assert row.metrics["rouge_forget"] == run.epochs[0].metrics["rouge_forget"]
    assert row.key == ""


def test_two_models_for_one_place_are_none(tmp_path: Path) -> None:
    records = read_records(a_folder(tmp_path))
    start = next(record for record in records if record.kind == "fine-tuned" and record.epochs)
    retain = next(record for record in records if record.kind == "retain" and record.epochs)
    same = replace(start, id="same")
    assert (
        numbers_of(table_of([*records, same]).rows).items()
        >= numbers_of(table_of(records).rows).items()
    ), "observed alike"
    second = replace(start, id="second", evaluations=retain.evaluations)
    places = references_of([*records, second])
    assert ("fine-tuned", *start.panel, "") not in places
    assert ("retain", *start.panel, "") in places
    failed = replace(start, id="third", epochs=(), evaluations={})
    assert references_of([*records, failed]).keys() == references_of(records).keys()
    table = table_of([*records, second])
    assert any(
        note.startswith("tiny, forget 20 %: 2 start models in one table, so numbers that ")
        for note in table.notes
    )
    runs = [row for row in table.rows if row.kind == "run"]
    assert {row.metrics["forgotten"] for row in runs} == {None}
    assert None not in {row.metrics["log10_forget_quality"] for row in runs}


def test_two_start_models_of_a_board_leave_no_number_out(tmp_path: Path) -> None:
    """A line has the numbers that its own sweep computed."""
    lines = [
        replace(record, evaluations={}, attacked_evaluations={})
        for record in read_records(a_folder(tmp_path))
    ]
    others = [replace(line, id=f"{line.id}0") for line in lines if line.kind == "fine-tuned"]
    table = table_of([*lines, *others])
    assert table.notes == ()
    numbers = numbers_of((*table.rows, *table.attacked))
    alone = table_of(lines)
    assert numbers.items() >= numbers_of((*alone.rows, *alone.attacked)).items()


def test_a_start_model_in_memory_gives_no_key(tmp_path: Path) -> None:
    """A key says which files numbers follow from."""
    records = read_records(a_folder(tmp_path))
    kept = [
        replace(record, evaluations=dict(record.evaluations))
        if record.kind == "fine-tuned" and record.epochs
        else record
        for record in records
    ]
    keys = {row.key for row in table_of(kept).rows}
    assert keys == {""}


def test_lines_without_observations_keep_their_numbers_but_for_other_settings(
    tmp_path: Path,
) -> None:
    records = [replace(r, evaluations={}) for r in read_records(a_folder(tmp_path))]
    plain = table_of(records).rows
    other = table_of(records, {"mia-min-k": {"share": 0.3}}).rows
    assert all(row.metrics["mia_min_k"] is not None for row in plain)
    assert all(row.metrics["mia_min_k"] is None for row in other)
    assert [row.metrics["kept"] for row in other] == [row.metrics["kept"] for row in plain]


# The file


def test_a_damaged_table_is_as_good_as_none(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    before = reported(folder)
    path = folder / TABLE_FILE
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    for damaged in (
        "",
        text[: len(text) // 2],
        text.replace('"relearning@1"', '"relearning@2"'),
        json.dumps(document | {"format": 0}),
        json.dumps(document | {"rows": []}),
        "[]",
    ):
        path.write_text(damaged, encoding="utf-8")
        assert read_table(folder).by_key == {}
        assert reported(folder) == before
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    assert read_table(folder).by_key.keys() == {row[3] for row in document["rows"]}


def test_a_table_names_its_columns_for_other_programs(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    finish(folder)
    document = json.loads((folder / TABLE_FILE).read_text(encoding="utf-8"))
    schema = {column["name"]: column for column in document["schema"]["columns"]}
    assert schema["rouge_forget"]["better"] == "lower"
    assert schema["rouge_forget"]["bounds"] == [0.0, 1.0]
    assert schema["rouge_forget"]["set"] == "forget"
    rows = read_csv(folder / "results.csv")
    models = [dict(zip(document["model_fields"], m, strict=True)) for m in document["models"]]
    place = document["columns"].index("rouge_forget") + 4
    stored = {
        (models[row[0]]["run_id"], row[1]): row[place] for row in document["rows"] if not row[2]
    }
    assert stored == {
        (row["run_id"], int(row["epoch"])): float(row["rouge_forget"]) for row in rows
    }


def test_a_metric_that_is_not_installed_leaves_the_settings_of_others(tmp_path: Path) -> None:
    """A plug-in that the configuration names may not be given to a later command."""
    file = tmp_path / "words.py"
    file.write_text(WORDS, encoding="utf-8")
    registry.register_file(file)
    metrics: Any = {"mia-min-k": {"share": 0.3}, "words": {}}
    folder = a_folder(tmp_path, evaluation={"metrics": metrics})
    before = reported(folder)
    registry._files.clear()  # pyright: ignore[reportPrivateUsage]
    (folder / TABLE_FILE).unlink()
    after = reported(folder)
    drain()
    for name in ("mia_min_k", "words_forget"):
        known = [row for row in before if name in row]
        assert known
        assert [row[name] for row in after if name in row] == [row[name] for row in known]


def test_numbers_by_other_settings_are_not_shown_where_a_metric_is_not_installed(
    tmp_path: Path,
) -> None:
    """They stand beside a configuration that names other settings."""
    file = tmp_path / "words.py"
    file.write_text(WORDS, encoding="utf-8")
    registry.register_file(file)
    folder = a_folder(
        tmp_path,
        evaluation={"metrics": {"words": {"factor": 0.5}}},
        earlier={"words": {"factor": 2.0}},
    )
    registry._files.clear()  # pyright: ignore[reportPrivateUsage]
    table = Results.read(folder).table
    assert all("words_forget" not in row.metrics for row in (*table.rows, *table.attacked))
    (note,) = table.notes
    assert note.startswith("metric words cannot be used here, because its plug-in is not given")

    registry.register_file(file)
    by_plugin = reported(folder)
    assert Results.read(folder).table.notes == ()
    registry._files.clear()  # pyright: ignore[reportPrivateUsage]
    for rows in (reported(folder), reported(folder)):
        assert [row["words_forget"] for row in rows] == [row["words_forget"] for row in by_plugin]
        assert Results.read(folder).table.notes == (note,)
    drain()


def test_a_run_of_the_folder_is_not_written_by_a_command_that_only_reads(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    Results.read(folder)
    assert not (folder / TABLE_FILE).exists()
    write_record(read_records(folder)[0], folder)
