"""How many runs share a GPU, by measurement (`resources.gpu: auto`).

The first runs of a group have a GPU each, and a probe measures what they use. When one of them has
finished, the rest of the group shares GPUs: as many runs on each as its memory, its busy time and
the machine's cores allow. The measurement is stored in the sweep's folder, and a later command of
the sweep uses it again.

A run computes as if it were alone, wherever it runs: with the same micro-batches, and with room for
the same batches of an evaluation. If its memory runs out beside other runs, it is run again alone.
So no number depends on how many runs share a GPU.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.base.atomic import write_text
from unlearnbench.base.gpu_share import CACHE_SHARE, WHOLE, GpuUse
from unlearnbench.base.hashing import content_hash, json_ready
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig

FILE = "gpu_sharing.json"
"""File in a sweep's folder with measurements and decisions."""
MOST = 8
"""Largest number of runs that share a GPU. Each has a CUDA context of about 0.5 GB, and several
gigabytes of the host's memory."""
ATTEMPTS = 2
"""Number of runs without a measurement after which a group shares no GPU."""
_SHARE_DIGITS = 10_000
"""Ray counts GPUs in parts of 1/10000, and rounds."""
_LIMITS = {
    "memory": "memory",
    "busy": "busy time",
    "cores": "CPU cores (resources.cpu)",
    "concurrent": "ray.concurrent",
    "most": f"at most {MOST} runs share a GPU",
    "out of memory": "memory ran out with more",
    "not measured": "not measured",
}
"""What limits the number of runs, in words."""


class GpuPlace(NamedTuple):
    """Where a run with `gpu: auto` runs."""

    share: float
    """Share of a GPU: 1 for a run that is alone on it."""
    is_measured: bool
    """Whether the run's use of the GPU is measured."""
    attempt: int
    """1, or 2 if the run's memory ran out beside other runs."""


class Decision(NamedTuple):
    """How many runs of a group share a GPU."""

    runs: int
    limit: str
    """Key of what allows no more runs: `busy`."""
    limits: Mapping[str, int]
    """Number of runs that each limit allows: `{"memory": 9, "busy": 6, "cores": 16}`."""


class Room(NamedTuple):
    """What the machines have for runs that share GPUs."""

    gpus: float
    cores_of_gpu: float | None
    """CPU cores beside each GPU, on the machine that has fewest of them. None if not known."""
    accelerators: tuple[str, ...]
    """Kinds of GPUs, as Ray names them: `accelerator_type:H100`."""
    concurrent: int | None
    """Largest number of runs at a time that the configuration allows."""

    @classmethod
    def of(cls, config: SweepConfig, nodes: Sequence[Mapping[str, float]]) -> Room:
        """Add up the resources of nodes, which are stated by Ray's names."""
        with_gpu = [node for node in nodes if node.get("GPU")]
        kinds = {name for node in with_gpu for name in node if name.startswith("accelerator_type:")}
        cores = [node.get("CPU", 0.0) / node["GPU"] for node in with_gpu]
        gpus = sum(node["GPU"] for node in with_gpu)
        # A cluster that grows may have no GPU yet.
        grows = config.ray.address is not None and config.ray.concurrent is not None
        return cls(
            gpus=max(gpus, float(config.ray.concurrent or 0)) if grows else gpus,
            cores_of_gpu=min(cores, default=None),
            accelerators=tuple(sorted(kinds)),
            concurrent=config.ray.concurrent,
        )


def decide(use: GpuUse, cores_of_run: float, room: Room, most: int | None = None) -> Decision:
    """Decide how many runs share a GPU, from what one of them used alone.

    Memory: each run needs at most `CACHE_SHARE` of its part. Busy time: one run more is worth it
    as long as at least half of its work finds the GPU idle, so 1 / busy is rounded.

    Args:
        use: What a run used.
        cores_of_run: CPU cores of a run.
        room: What the machines have.
        most: Number of runs that the group's memory has not held. None: it has held all so far.
    """
    limits = {"memory": int(CACHE_SHARE * use.total / use.memory), "most": MOST}
    if use.busy is None:
        limits["not measured"] = 1
    else:
        limits["busy"] = int(1 / max(use.busy, 0.01) + 0.5)
    if room.cores_of_gpu is not None:
        limits["cores"] = int(room.cores_of_gpu / cores_of_run + 1e-9)
    if room.concurrent is not None:
        limits["concurrent"] = math.ceil(room.concurrent / max(room.gpus, 1.0))
    if most is not None:
        limits["out of memory"] = most // 2
    limits = {name: max(number, 1) for name, number in limits.items()}
    # Of equal numbers, the first limit of `_LIMITS` is named.
    limit = min((name for name in _LIMITS if name in limits), key=lambda name: limits[name])
    return Decision(limits[limit], limit, limits)


def share_of(runs: int) -> float:
    """Return the share of each of `runs` runs, so that Ray has room for all of them.

    Ray would round 1/6 up to 0.1667, of which five fit.
    """
    return math.floor(_SHARE_DIGITS / runs) / _SHARE_DIGITS


class Group(NamedTuple):
    """Runs that use a GPU alike, of which the first is measured for all."""

    key: str
    """Hash of the settings that memory depends on."""
    label: str
    """Name for people: `tiny, fp32, batches of 32`."""
    cores: float
    """CPU cores of a run."""


def group_of(run: RunSpec, config: SweepConfig) -> Group | None:
    """Return the group of a run; None if its model does not have `gpu: auto`.

    Runs of a group have the same model, precision, batches, optimiser, evaluation and attacks.
    Their methods, learning rates and splits may differ.
    """
    resources = config.resources_of(run.model.name)
    if not resources.is_measured:
        return None
    training = run.training
    trains = run.learning_rate is not None
    settings: dict[str, Any] = {
        "model": run.model,
        "evaluation": run.evaluation,
        "attacks": run.attacks,
        "max_length": training.max_length,
    }
    kind = "no training"
    if trains:
        kind = f"{training.precision}, {training.optimizer}, batches of {training.batch_size}"
        settings |= {"training": kind, "micro_batch_size": training.micro_batch_size}
    return Group(
        content_hash(json_ready(_plain(settings))), f"{run.model.name}, {kind}", resources.cpu
    )


def _plain(settings: Any) -> Any:
    """Return settings as values of JSON."""
    if isinstance(settings, dict):
        return {key: _plain(value) for key, value in settings.items()}
    if isinstance(settings, tuple):
        return [_plain(value) for value in settings]
    return settings.model_dump(mode="json") if hasattr(settings, "model_dump") else settings


@dataclass(frozen=True)
class _State:
    """What is known of a group.

    Attributes:
        label: The group's name.
        use: The most that a run used alone. None before the first measurement.
        most: Number of runs whose memory ran out together, if it did.
        decision: How many runs share a GPU. None before the first measurement.
    """

    label: str
    use: GpuUse | None = None
    most: int | None = None
    decision: Decision | None = None

    @property
    def text(self) -> str:
        """What was measured and decided, as a sentence."""
        if self.use is None or self.decision is None:
            return f"{self.label}: no measurement, so each run has a GPU of its own"
        memory = f"{self.use.memory / 2**30:.1f} of {self.use.total / 2**30:.1f} GiB"
        runs = self.decision.runs
        shared = f"{runs} runs share a GPU" if runs > 1 else "each run has a GPU of its own"
        limit = f"limit: {_LIMITS[self.decision.limit]}"
        if self.use.busy is None:
            return (
                f"{self.label}: a run takes {memory}, and the driver does not say how busy the GPU "
                f"is, so {shared}; to share it all the same, set resources.gpu: 0.5"
            )
        busy = f"{100 * self.use.busy:.0f} %"
        return (
            f"{self.label}: a run takes {memory} and keeps the GPU busy for {busy} of its time, so "
            f"{shared} ({limit})"
        )


class GpuSharing:
    """Measurements and decisions of a sweep, by group. They are stored in the sweep's folder."""

    def __init__(
        self, config: SweepConfig, folder: Path, room: Room, show: Callable[[str, int], None]
    ) -> None:
        """Begin with what earlier commands have measured on GPUs of the same kind.

        Args:
            config: The sweep.
            folder: The sweep's folder.
            room: What the machines have.
            show: Is called with a sentence, and with the number of runs at a time from now on.
        """
        self._config = config
        self._file = folder / FILE
        self._room = room
        self._show = show
        self._states: dict[str, _State] = {}
        """By key of the group. Measured groups of earlier commands have no decision yet."""
        self._shown: set[str] = set()
        self._without_measurement: Counter[str] = Counter()
        """Number of runs by group that ended without one."""
        for key, stored in _stored_groups(self._file, room.accelerators).items():
            use = GpuUse.read(stored)
            most = stored.get("most")
            if use is not None and use.memory > 0 and isinstance(most, int | None):
                self._states[key] = _State(str(stored.get("label", "")), use, most)

    @property
    def gpus(self) -> float:
        """Number of GPUs."""
        return self._room.gpus

    def group(self, run: RunSpec) -> Group | None:
        """Return the group of a run; None if its model does not have `gpu: auto`."""
        return group_of(run, self._config)

    def share(self, group: Group) -> float:
        """Return the share of a GPU that a run of a group gets now: 1 until one was measured."""
        state = self._states.get(group.key)
        if state is None:
            return WHOLE
        if state.use is not None and state.decision is None:
            state = self._decided(group, state)
        if state.decision is None:
            return WHOLE
        if group.key not in self._shown:
            self._show_state(group.key, state)
        return share_of(state.decision.runs)

    def is_measured(self, group: Group) -> bool:
        """Whether it is known how many runs of a group share a GPU."""
        return group.key in self._states

    def measured(self, group: Group, use: GpuUse | None) -> None:
        """Take up what a run has used that was alone on a GPU.

        If several runs of a group were measured, the largest values count.

        Args:
            group: The run's group.
            use: What it has used. None, or without memory: it was not measured.
        """
        if use is None or use.memory <= 0:
            self._without_measurement[group.key] += 1
            is_hopeless = self._without_measurement[group.key] >= ATTEMPTS
            if is_hopeless and group.key not in self._states:
                decision = Decision(1, "not measured", {})
                self._states[group.key] = _State(group.label, decision=decision)
            return
        before = self._states.get(group.key, _State(group.label))
        self._decided(group, replace(before, label=group.label, use=_larger(before.use, use)))

    def ran_out_of_memory(self, group: Group, share: float) -> str:
        """Let fewer runs of a group share a GPU, because one of them ran out of memory.

        Args:
            group: The run's group.
            share: The run's share. Of several runs with one share, only the first one counts.

        Returns:
            The sentence for the user.
        """
        state = self._states[group.key]
        if state.decision is not None and share == share_of(state.decision.runs):
            self._decided(group, replace(state, most=state.decision.runs))
        return (
            f"{group.label}: out of memory while runs share a GPU; the run is repeated alone, and "
            "fewer runs share a GPU from now on"
        )

    def _decided(self, group: Group, state: _State) -> _State:
        """Decide for a group with a measurement, store the decision, and show it."""
        if state.use is None:
            return state
        decision = decide(state.use, group.cores, self._room, state.most)
        has_changed = state.decision is None or decision.runs != state.decision.runs
        decided = replace(state, decision=decision)
        self._states[group.key] = decided
        self._store()
        if has_changed:
            self._show_state(group.key, decided)
        return decided

    def _show_state(self, key: str, state: _State) -> None:
        self._shown.add(key)
        runs = 1 if state.decision is None else state.decision.runs
        at_a_time = max(1, int(self._room.gpus * runs))
        if self._room.concurrent is not None:
            at_a_time = min(at_a_time, self._room.concurrent)
        self._show(state.text, at_a_time)

    def _store(self) -> None:
        groups: dict[str, Any] = {}
        for key, state in self._states.items():
            if state.use is None:
                continue
            groups[key] = {"label": state.label, **state.use._asdict(), "most": state.most}
            if state.decision is not None:
                groups[key] |= {
                    "runs": state.decision.runs,
                    "limit": state.decision.limit,
                    "limits": dict(state.decision.limits),
                }
        document = {"accelerators": list(self._room.accelerators), "groups": groups}
        write_text(self._file, json.dumps(document, indent=1))


def _larger(first: GpuUse | None, second: GpuUse) -> GpuUse:
    """Return the larger values of two measurements on GPUs of one kind."""
    if first is None or first.total != second.total:
        return second
    busy = [use.busy for use in (first, second) if use.busy is not None]
    return second._replace(memory=max(first.memory, second.memory), busy=max(busy, default=None))


def _stored_groups(file: Path, accelerators: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read the groups that earlier commands measured on GPUs of the same kind."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["accelerators"] != list(accelerators):
            return {}
        return {key: dict(group) for key, group in document["groups"].items()}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}


class Wait(Enum):
    """The answer of a queue that has runs, but no room for one of them now."""

    WAIT = "wait"


class PlacedRun(NamedTuple):
    """A run that can begin."""

    run: RunSpec
    place: GpuPlace | None
    """None for a run whose model has no `gpu: auto`."""


class _QueuedRun(NamedTuple):
    """A run that waits or has begun. Id and group are hashes, so they are computed once."""

    run: RunSpec
    id: str
    group: Group | None
    is_repeated: bool = False
    """Whether its memory ran out beside other runs, so that it has to be alone."""

    @property
    def kind(self) -> tuple[Group | None, bool]:
        """What its share depends on."""
        return self.group, self.is_repeated


class SharedQueue:
    """The runs that are left, of which it gives one as soon as there is room on a GPU."""

    def __init__(
        self, next_run: Callable[[], RunSpec | None], ahead: int, sharing: GpuSharing
    ) -> None:
        """Begin with all GPUs free.

        Args:
            next_run: Gives the next run; None after the last one.
            ahead: Number of runs to take from `next_run` before there is room for them. A search
                should suggest each run as late as possible.
            sharing: Knows the shares.
        """
        self.sharing = sharing
        self._next_run = next_run
        self._ahead = ahead
        self._is_exhausted = False
        self._waiting: list[_QueuedRun] = []
        self._begun: dict[str, _QueuedRun] = {}
        """Runs on GPUs by id."""
        self._shares: dict[str, float] = {}
        """Their shares by id."""

    def next(self) -> PlacedRun | Wait | None:
        """Return the next run that can begin; None after the last one."""
        self._look_ahead()
        in_use = sum(self._shares.values())
        without_room: set[tuple[Group | None, bool]] = set()
        for index, queued in enumerate(self._waiting):
            if queued.kind in without_room:
                continue
            share = self._share(queued)
            # A run that finds all GPUs free can always begin.
            has_room = in_use + share <= self.sharing.gpus + 1e-6 or not self._shares
            if has_room:
                del self._waiting[index]
                return self._begin(queued, share)
            without_room.add(queued.kind)
        return Wait.WAIT if self._waiting or self._shares else None

    def _look_ahead(self) -> None:
        while len(self._waiting) < self._ahead and not self._is_exhausted:
            run = self._next_run()
            if run is None:
                self._is_exhausted = True
            else:
                self._waiting.append(_QueuedRun(run, run.id, self.sharing.group(run)))

    def _share(self, queued: _QueuedRun) -> float:
        """Return the share that a run takes of the measured GPUs."""
        if queued.group is None:
            return 0.0  # the configuration says what it needs, and Ray waits for that
        return WHOLE if queued.is_repeated else self.sharing.share(queued.group)

    def _begin(self, queued: _QueuedRun, share: float) -> PlacedRun:
        if queued.group is None:
            return PlacedRun(queued.run, None)
        self._begun[queued.id] = queued
        self._shares[queued.id] = share
        is_measured = share == WHOLE and not self.sharing.is_measured(queued.group)
        attempt = 2 if queued.is_repeated else 1
        return PlacedRun(queued.run, GpuPlace(share, is_measured, attempt))

    def ended(self, run_id: str, place: GpuPlace, use: GpuUse | None) -> None:
        """Note that a run on a GPU has ended.

        Args:
            run_id: The run's id.
            place: Where it ran.
            use: What it has used of the GPU, if it was measured.
        """
        del self._shares[run_id]
        group = self._begun.pop(run_id).group
        if place.is_measured and group is not None:
            self.sharing.measured(group, use)

    def repeat_alone(self, run_id: str) -> str:
        """Take back a run that ran out of memory beside other runs.

        Returns:
            The sentence for the user.
        """
        share = self._shares.pop(run_id)
        queued = self._begun.pop(run_id)
        self._waiting.append(queued._replace(is_repeated=True))
        assert queued.group is not None
        return self.sharing.ran_out_of_memory(queued.group, share)
