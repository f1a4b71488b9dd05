"""The bench of sweeps: its figures of two ways, and a real sweep of runs that do nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.bench import sweep
from unlearnbench.bench.measurement import circumstances
from unlearnbench.bench.noop_sweep import noop_config, noop_sweep
from unlearnbench.cli.main import main
from unlearnbench.plan.plan import make_plan
from unlearnbench.results.records import EpochResult, Record, run_record
from unlearnbench.tracking import sweep_tracker


def a_record(index: int, *, process: int = 1, end: int = 0, value: float = 0.5) -> Record:
    run = make_plan(noop_config(Path(), 8), "none").runs[index]
    made = {"process": process, "finished": f"2026-01-01T00:00:{end:02}+00:00"}
    result = EpochResult(1, {"model_utility": value, "ks_n": None}, 2.0, 1.0)
    return run_record(run, status="finished", profile="p", epochs=(result,), provenance=made)


def apart(one: list[Record], other: list[Record]) -> float:
    return sweep._apart(one, other)  # pyright: ignore[reportPrivateUsage]


def test_two_ways_are_as_far_apart_as_their_metrics() -> None:
    one = [a_record(0), a_record(1)]
    assert apart(one, one) == 0
    assert apart(one, [one[0], a_record(1, value=0.51)]) == pytest.approx(0.01)
    assert apart(one, one[:1]) == float("inf")
    blank = replace(one[1], epochs=(EpochResult(1, {"model_utility": None, "ks_n": None}, 0, 0),))
    assert apart(one, [one[0], blank]) == float("inf")


def test_overhead_is_what_a_process_did_between_two_ends_beside_its_work() -> None:
    records = [
        a_record(0, process=1, end=10),
        a_record(1, process=2, end=11),
        a_record(2, process=1, end=14),
        a_record(3, process=1, end=19),
    ]
    found = sweep._overheads(records)  # pyright: ignore[reportPrivateUsage]
    assert found == pytest.approx([14 - 10 - 3, 19 - 14 - 3])


def test_what_is_lost_double_or_different_is_not_sound() -> None:
    noop = dict.fromkeys(("records_lost", "records_double", "mlflow_lost", "mlflow_double"), 0) | {
        "runs": 10,
        "seconds": 1.0,
        "page_bytes": 1,
        "memory_after_a_fifth": 1,
    }
    result: dict[str, Any] = {
        "runs": 2,
        "seconds": {"loop": [8.0], "sweep": [2.0]},
        "apart": 1e-9,
        "overheads": [0.1, 0.3],
        "sweep": {"busy": {"here, 2 slots": 0.9}},
        "noop": {**noop, "memory_at_the_end": 1},
    }
    assert sweep.sound(result)
    assert not sweep.sound(result | {"apart": 0.01})
    for name in ("records_lost", "mlflow_double"):
        assert not sweep.sound(result | {"noop": result["noop"] | {name: 1}})
    ways, about, nothing = sweep.tables(result)
    assert ways.rows[1] == ("sweep", "2.0", "60.0", "4.0×")
    assert ("overhead of a further run in a worker", "0.20 s, at most 0.30 s") in about.rows
    assert ("records lost, double", "0, 0") in nothing.rows


def test_the_command_prints_records_and_returns_whether_it_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[sweep.SweepBenchSettings] = []
    apart = 0.0

    def measured(settings: sweep.SweepBenchSettings, _: Any) -> dict[str, Any]:
        asked.append(settings)
        seconds = {"loop": [8.0], "sweep": [2.0]}
        found = {"runs": 2, "seconds": seconds, "apart": apart, "overheads": [0.1, 0.3]}
        return {
            **circumstances(),
            "settings": {"repeats": 1},
            **found,
            "sweep": {"busy": {"here, 2 slots": 0.9}},
        }

    monkeypatch.setattr(sweep, "bench_sweep", measured)
    words = ["bench", "sweep", "--noop", "0", "--quick", "--threads", "1"]
    assert main([*words, "--record", str(tmp_path / "record.jsonl")]) == 0
    assert (asked[0].repeats, asked[0].noop, asked[0].quick) == (1, 0, True)
    assert "overhead of a further run in a worker" in capsys.readouterr().out
    assert json.loads((tmp_path / "record.jsonl").read_text())["runs"] == 2
    apart = 0.01
    assert main([*words, "--markdown"]) == 1
    assert "| sweep | 2.0 | 60.0 | 4.0× |" in capsys.readouterr().out
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["apart"] == 0.01


@pytest.mark.slow
@pytest.mark.usefixtures("empty_store")
# MLflow 3.17 asks SQLAlchemy 2.1 for a loader that the latter is about to drop.
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
def test_runs_that_do_nothing_are_recorded_and_logged_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_tracker, "FIGURES", ())  # drawing them takes most of the logging
    found = noop_sweep(tmp_path, 12)
    assert found["runs"] == 12
    assert [
        found[f"{what}_{how}"] for what in ("records", "mlflow") for how in ("lost", "double")
    ] == [0] * 4
    assert found["seconds"] > 0
    assert 0 < found["memory_at_the_end"] < 2**31
