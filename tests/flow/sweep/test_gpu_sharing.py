"""With `gpu: auto`, the first run is measured alone, and the others share the GPU."""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.base.gpu_share import GpuUse, gpu_share
from unlearnbench.base.out_of_memory import OomRetry, can_repeat_smaller
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.resources import Resources, TrackingSettings
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.report.report import finish
from unlearnbench.results.records import EpochResult, read_records, run_record, write_record
from unlearnbench.results.time_to_go import order_runs
from unlearnbench.runs.run import run_epochs
from unlearnbench.sweep.gpu_sharing import (
    FILE,
    MOST,
    GpuPlace,
    GpuSharing,
    Group,
    PlacedRun,
    Room,
    SharedQueue,
    Wait,
    decide,
    share_of,
)
from unlearnbench.sweep.pipeline import Pipeline

from ...factories.stand_in_gpu import (
    GIB,
    most_at_once,
    probe_of,
    ray_with_a_gpu,
    stand_in_pipeline,
    stays,
)
from ..small_run import config_of, without_times
from .noop_sweep import NOOP, noop_config
from .shown_sweep import sweep

MACHINE = Room(gpus=1, cores_of_gpu=16, accelerators=(), concurrent=None)


def use(gib: float, busy: float | None, total: float = 80) -> GpuUse:
    return GpuUse("a GPU", int(total * GIB), int(gib * GIB), busy, seconds=60)


@pytest.mark.parametrize(
    ("measured", "room", "cores", "runs", "limit"),
    [
        # 0.7 · 80 / 20 = 2.8; a seventh of its time: 7
        (use(20, 0.14), MACHINE, 1, 2, "memory"),
        # 0.7 · 80 / 4 = 14; 1 / 0.16 = 6.25
        (use(4, 0.16), MACHINE, 1, 6, "busy"),
        # A second run finds the GPU idle for 40 of its 60 per cent: more than half.
        (use(4, 0.6), MACHINE, 1, 2, "busy"),
        # A second run finds the GPU idle for 30 of its 70 per cent: less than half.
        (use(4, 0.7), MACHINE, 1, 1, "busy"),
        (use(60, 0.1), MACHINE, 1, 1, "memory"),
        (use(4, 0.0), MACHINE, 1, MOST, "most"),
        (use(4, 0.1), MACHINE, 4, 4, "cores"),
        (use(4, 0.1), MACHINE, 32, 1, "cores"),
        (use(4, 0.1), MACHINE._replace(concurrent=3), 1, 3, "concurrent"),
        (use(4, 0.1), MACHINE._replace(gpus=2, concurrent=3), 1, 2, "concurrent"),
        (use(4, None), MACHINE, 1, 1, "not measured"),
        (use(4, 0.1), MACHINE._replace(cores_of_gpu=None), 1, MOST, "most"),
    ],
)
def test_the_scarcest_resource_limits_the_runs_on_a_gpu(
    measured: GpuUse, room: Room, cores: float, runs: int, limit: str
) -> None:
    decision = decide(measured, cores, room)
    assert (decision.runs, decision.limit) == (runs, limit)
    assert decision.runs == min(decision.limits.values())


def test_half_of_the_runs_share_a_gpu_whose_memory_ran_out() -> None:
    assert decide(use(4, 0.16), 1, MACHINE, most=6).runs == 3
    assert decide(use(4, 0.16), 1, MACHINE, most=2).runs == 1


@pytest.mark.parametrize("runs", range(1, MOST + 1))
def test_ray_has_room_for_as_many_shares_as_were_decided(runs: int) -> None:
    """Ray rounds a number of GPUs to four digits."""
    assert round(share_of(runs), 4) * runs <= 1
    assert round(share_of(runs), 4) * (runs + 1) > 1


def test_a_run_has_room_for_the_same_keys_and_values_beside_others() -> None:
    """An evaluation takes 70 % of what its part of the memory leaves beside the weights."""
    for weights, cached, rest in ((2.0, 10.0, 1.0), (0.1, 20.0, 0.0), (15.0, 0.5, 4.0)):
        runs = decide(use(weights + cached + rest, 0.05), 1, MACHINE).limits["memory"]
        assert 0.7 * (share_of(runs) * 80 - weights) >= cached


def runs_of(count: int, folder: Path) -> tuple[SweepConfig, list[RunSpec]]:
    config = noop_config(folder, count).model_copy(update={"resources": Resources(gpu="auto")})
    return config, list(NOOP.plan(config).runs)


def sharing_of(config: SweepConfig, folder: Path, **room: Any) -> tuple[GpuSharing, list[str]]:
    lines: list[str] = []
    sharing = GpuSharing(
        config, folder, MACHINE._replace(**room), lambda text, _slots: lines.append(text)
    )
    return sharing, lines


def group_in(sharing: GpuSharing, run: RunSpec) -> Group:
    group = sharing.group(run)
    assert group is not None
    return group


def share_in(sharing: GpuSharing, run: RunSpec) -> float:
    return sharing.share(group_in(sharing, run))


def queue_of(sharing: GpuSharing, runs: Sequence[RunSpec]) -> SharedQueue:
    left = iter(runs)
    return SharedQueue(lambda: next(left, None), ahead=len(runs), sharing=sharing)


def begun(queue: SharedQueue) -> list[PlacedRun]:
    """Take all runs for which there is room now."""
    placed: list[PlacedRun] = []
    while isinstance(one := queue.next(), PlacedRun):
        placed.append(one)
    return placed


def end(queue: SharedQueue, placed: PlacedRun, used: GpuUse | None) -> None:
    assert placed.place is not None
    queue.ended(placed.run.id, placed.place, used)


def test_runs_wait_for_the_first_one_and_then_share_the_gpu(tmp_path: Path) -> None:
    config, runs = runs_of(8, tmp_path)
    sharing, lines = sharing_of(config, tmp_path)
    queue = queue_of(sharing, runs)
    (first,) = begun(queue)
    assert first == PlacedRun(runs[0], GpuPlace(1.0, is_measured=True, attempt=1))
    assert queue.next() is Wait.WAIT
    assert not lines
    end(queue, first, use(10, 0.25))
    shared = begun(queue)
    assert [placed.run for placed in shared] == runs[1:5]
    assert {placed.place for placed in shared} == {GpuPlace(0.25, is_measured=False, attempt=1)}
    assert lines == [
        "none, fp32, adamw, batches of 32: a run takes 10.0 of 80.0 GiB and keeps the GPU busy "
        "for 25 % of its time, so 4 runs share a GPU (limit: busy time)"
    ]
    for placed in shared:
        end(queue, placed, None)
    for placed in begun(queue):
        end(queue, placed, None)
    assert queue.next() is None


def test_all_gpus_are_used_before_the_first_measurement(tmp_path: Path) -> None:
    config, runs = runs_of(8, tmp_path)
    sharing, _ = sharing_of(config, tmp_path, gpus=2)
    queue = queue_of(sharing, runs)
    alone = begun(queue)
    assert [placed.place for placed in alone] == [GpuPlace(1.0, is_measured=True, attempt=1)] * 2
    end(queue, alone[0], use(10, 0.25))
    assert len(begun(queue)) == 4, "the other run keeps its GPU"
    end(queue, alone[1], use(20, 0.25))
    assert share_in(sharing, runs[-1]) == 0.5, "the largest measurement counts"


def test_models_are_measured_one_by_one(tmp_path: Path) -> None:
    config, _ = runs_of(2, tmp_path)
    other = ModelSettings(name="other", base="tiny", dtype="bfloat16")
    config = config.model_copy(update={"models": (*config.models, other)})
    runs = sorted(NOOP.plan(config).runs, key=lambda run: run.model.name)
    sharing, lines = sharing_of(config, tmp_path)
    for run, gib in ((runs[0], 10), (runs[-1], 40)):
        assert run.model.name == {10: "none", 40: "other"}[gib]
        sharing.measured(group_in(sharing, run), use(gib, 0.1))
    assert share_in(sharing, runs[1]) == share_of(5)  # 0.7 · 80 / 10 = 5.6
    assert share_in(sharing, runs[-1]) == 1.0
    assert [line.partition(",")[0] for line in lines] == ["none", "other"]


def test_a_run_whose_memory_runs_out_is_repeated_alone(tmp_path: Path) -> None:
    config, runs = runs_of(8, tmp_path)
    sharing, lines = sharing_of(config, tmp_path)
    queue = queue_of(sharing, runs)
    (first,) = begun(queue)
    end(queue, first, use(10, 0.25))
    shared = begun(queue)
    texts = {queue.repeat_alone(placed.run.id) for placed in shared[:2]}
    assert len(texts) == 1, "one warning"
    assert "repeated alone" in texts.pop()
    assert lines[1:] == [
        lines[0].replace("4 runs", "2 runs").replace("busy time", "memory ran out with more")
    ], lines
    for placed in shared[2:]:
        end(queue, placed, None)
    rest = begun(queue)
    assert [(placed.run, placed.place.share) for placed in rest if placed.place] == [
        (runs[5], 0.5),
        (runs[6], 0.5),
    ]
    for placed in rest:
        end(queue, placed, None)
    (seventh,) = begun(queue)
    end(queue, seventh, None)
    for repeated in (shared[0].run, shared[1].run):
        (placed,) = begun(queue)
        assert placed == PlacedRun(repeated, GpuPlace(1.0, is_measured=False, attempt=2))
        end(queue, placed, None)
    assert queue.next() is None


@pytest.mark.parametrize("used", [None, use(0, None)], ids=["failed", "gpu-not-used"])
def test_a_group_that_cannot_be_measured_shares_no_gpu(tmp_path: Path, used: GpuUse | None) -> None:
    config, runs = runs_of(4, tmp_path)
    sharing, lines = sharing_of(config, tmp_path)
    queue = queue_of(sharing, runs)
    for attempt in range(4):
        (placed,) = begun(queue)
        assert placed.place == GpuPlace(1.0, is_measured=attempt < 2, attempt=1)
        end(queue, placed, used)
    assert lines == [
        "none, fp32, adamw, batches of 32: no measurement, so each run has a GPU of its own"
    ]
    assert not (tmp_path / FILE).exists()


def test_a_later_command_uses_the_measurement_again(tmp_path: Path) -> None:
    config, runs = runs_of(4, tmp_path)
    sharing, lines = sharing_of(config, tmp_path)
    sharing.measured(group_in(sharing, runs[0]), use(10, 0.25))
    (stored,) = json.loads((tmp_path / FILE).read_text())["groups"].values()
    assert (stored["memory"], stored["busy"], stored["runs"]) == (10 * GIB, 0.25, 4)
    assert (stored["limit"], stored["device"]) == ("busy", "a GPU")

    later, again = sharing_of(config, tmp_path)
    assert share_in(later, runs[1]) == 0.25
    assert share_in(later, runs[2]) == 0.25
    assert again == lines
    fewer_cores, _ = sharing_of(config, tmp_path, cores_of_gpu=2)
    assert share_in(fewer_cores, runs[1]) == 0.5, (
        "the decision is taken for the machine as it is now"
    )
    other_gpus, _ = sharing_of(config, tmp_path, accelerators=("accelerator_type:T4",))
    assert share_in(other_gpus, runs[1]) == 1.0, "and measured again on other GPUs"
    written = (tmp_path / FILE).read_text()
    for text in (
        "{",
        "[]",
        written.replace('"most": null', '"most": "x"'),
        written.replace(f'"memory": {10 * GIB}', '"memory": 0'),
    ):
        (tmp_path / FILE).write_text(text)
        damaged, _ = sharing_of(config, tmp_path)
        assert share_in(damaged, runs[1]) == 1.0


def test_no_batch_is_halved_beside_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of a run would then depend on how many runs share its GPU."""
    error = torch.OutOfMemoryError("CUDA out of memory")
    assert can_repeat_smaller(error)
    monkeypatch.setattr("unlearnbench.base.gpu_share._share_of_process", [0.25])
    assert not can_repeat_smaller(error)
    retry = OomRetry(rows=8)

    def full() -> None:
        raise error

    with pytest.raises(torch.OutOfMemoryError):
        retry.step(full, lambda: None, number=1, rows=8, alone=True)
    assert (retry.rows, retry.seen) == (8, [])


@pytest.mark.long
def test_numbers_do_not_depend_on_how_many_runs_share_the_gpu(place: Path, tmp_path: Path) -> None:
    """A sweep of four trained runs: one alone, then three at a time; and each alone on the CPU."""
    methods = tuple(MethodGrid(specs=(method_spec(name, {}),)) for name in ("npo", "ce-u"))
    changes: dict[str, Any] = {
        "methods": methods,
        "learning_rates": (1e-3, 2e-3),
        "epochs": 1,
        "tracking": TrackingSettings(enabled=False),
    }
    on_the_cpu = config_of(place, **changes)
    on_a_gpu = on_the_cpu.model_copy(update={"resources": Resources(gpu="auto")})
    runs = {run.id: run for run in Pipeline().plan(on_the_cpu).runs}
    marks = tmp_path / "marks"
    marks.mkdir()
    # 0.7 / 0.2 = 3.5; 1 / 0.35 = 2.9
    pipeline = stand_in_pipeline(marks, together=3, use=use(16, 0.35))
    with ray_with_a_gpu(on_a_gpu, cores=4):
        shared, lines = sweep(on_a_gpu, pipeline, force=True)
    assert (shared.total, shared.finished) == (4, 4)
    first, *others = stays(marks)
    assert first.share == 1
    assert all(other.begin >= first.end for other in others)
    assert {other.share for other in others} == {0.3333}
    assert most_at_once(others) == 3
    told = [line for line in lines if "share a GPU" in line]
    assert told == [
        "tiny, fp32, adamw, batches of 4: a run takes 16.0 of 80.0 GiB and keeps the GPU busy for "
        "35 % of its time, so 3 runs share a GPU (limit: memory)"
    ]
    assert told[0] in (shared.folder / "sweep.log").read_text()

    alone = Path(on_the_cpu.output) / "alone"
    shutil.copytree(shared.folder, alone)
    shutil.rmtree(alone / "records")
    for record in (shared.folder / "records").iterdir():
        if record.name not in runs:
            shutil.copytree(record, alone / "records" / record.name)
    for run in runs.values():
        list(run_epochs(run, on_the_cpu, alone))
    finish(alone)
    table = (alone / "results.csv").read_text()
    assert table == (shared.folder / "results.csv").read_text()
    assert table.count("\n") > 4
    assert [without_times(record) for record in read_records(alone)] == [
        without_times(record) for record in read_records(shared.folder)
    ]


@pytest.mark.long
def test_a_crowded_run_ends_finished_and_a_resumed_sweep_measures_nothing(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def crowded_run(run: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:  # noqa: ARG001
        share = gpu_share()
        is_first = not [*marks.iterdir()]
        (marks / f"{run.id}.{share}.{time.monotonic_ns()}").touch()
        if is_first:
            raise OSError("the disk is away")  # the measured run is tried again
        metrics: dict[str, Any] = {"model_utility": 0.5, "log10_forget_quality": -3.0}
        result = EpochResult(1, metrics, 0.0, 0.0)
        yield result
        if share < 1 and run.id == crowded:
            cause = torch.OutOfMemoryError("CUDA out of memory")
            raise ValueError("a loss of my own") from cause
        write_record(run_record(run, status="finished", epochs=(result,)), folder)

    pipeline = replace(NOOP, run_epochs=crowded_run, gpu_probe=probe_of(use(10, 0.25)))
    config, runs = runs_of(8, tmp_path)
    crowded = order_runs(["none"], runs)[2].id
    config = config.model_copy(update={"tracking": TrackingSettings(enabled=False)})
    with ray_with_a_gpu(config, cores=8):
        result, lines = sweep(config, pipeline)
        assert (result.total, result.finished, result.failed) == (8, 8, 0), lines
        attempts = [path.name.split(".", 1)[1].rsplit(".", 1)[0] for path in marks.iterdir()]
        assert len(attempts) == 10
        assert attempts.count("1.0") == 3, "two tries of the measured run, and the repeated one"
        assert len([*marks.glob(f"{crowded}.1.0.*")]) == 1
        assert sum("out of memory" in line for line in lines if line.startswith("warning")) == 1
        again, _ = sweep(noop_again(config, 12), pipeline)
    assert (again.total, again.finished) == (12, 12)
    later = [path.name for path in marks.iterdir() if path.name[:16] not in {r.id for r in runs}]
    assert len(later) == 4
    assert not [name for name in later if ".1.0." in name], "no run is measured again"


def noop_again(config: SweepConfig, runs: int) -> SweepConfig:
    """The same sweep with more runs."""
    larger = noop_config(Path(config.output), runs)
    return config.model_copy(update={"learning_rates": larger.learning_rates})


def test_a_search_suggests_a_run_only_if_there_is_room_for_it(tmp_path: Path) -> None:
    config, runs = runs_of(8, tmp_path)
    sharing, _ = sharing_of(config, tmp_path)
    suggested: list[RunSpec] = []

    def suggest() -> RunSpec | None:
        if len(suggested) == len(runs):
            return None
        suggested.append(runs[len(suggested)])
        return suggested[-1]

    queue = SharedQueue(suggest, ahead=1, sharing=sharing)
    (first,) = begun(queue)
    assert len(suggested) == 2, "one run is suggested in advance"
    end(queue, first, use(10, 0.25))
    shared = begun(queue)
    assert (len(shared), len(suggested)) == (4, 6)
    queue.repeat_alone(shared[0].run.id)
    for placed in shared[1:]:
        end(queue, placed, None)
    ended: list[RunSpec] = []
    while isinstance(one := queue.next(), PlacedRun):
        ended.append(one.run)
        end(queue, one, None)
    assert one is None
    assert ended == [runs[5], shared[0].run, *runs[6:]]


def test_runs_of_other_models_need_no_room_on_the_measured_gpu(tmp_path: Path) -> None:
    config, _ = runs_of(2, tmp_path)
    other = ModelSettings(name="other", base="tiny", resources=Resources(gpu=0))
    config = config.model_copy(update={"models": (*config.models, other)})
    runs = list(NOOP.plan(config).runs)
    sharing, _ = sharing_of(config, tmp_path)
    queue = queue_of(sharing, runs)
    placed = begun(queue)
    places = [one.place for one in placed if one.run.model.name == "other"]
    assert places == [None] * (len(runs) // 2)
    assert len(placed) == len(places) + 1
    end(queue, placed[0], use(10, 0.5))
    assert len(begun(queue)) == 2


def test_a_long_queue_is_looked_through_quickly(tmp_path: Path) -> None:
    """Tune asks many times a second. A run's id and group are hashes, which are computed once."""
    config, runs = runs_of(400, tmp_path)
    sharing, _ = sharing_of(config, tmp_path)
    queue = queue_of(sharing, runs)
    (first,) = begun(queue)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unlearnbench.sweep.gpu_sharing.group_of", None)
        patch.setattr(RunSpec, "id", None)
        assert queue.next() is Wait.WAIT
    end(queue, first, use(10, 0.25))
    assert len(begun(queue)) == 4
