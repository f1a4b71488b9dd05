"""Refuse runs whose estimated memory does not fit their device, before they begin.

A refusal names settings with which they fit, each checked with the same estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.api.benchmark import Dataset
from unlearnbench.api.method import Method
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.schema import LoRA, SweepConfig
from unlearnbench.config.training_settings import EIGHT_BIT
from unlearnbench.errors import ModelError, TrainingError
from unlearnbench.estimates.run_estimate import Estimate, estimate_plan, estimate_run
from unlearnbench.models.device import USABLE_SHARE, device_memory
from unlearnbench.plan.plan import Plan
from unlearnbench.plan.run_spec import RunSpec


@dataclass(frozen=True)
class Remedy:
    """Settings with which runs fit."""

    sets: tuple[str, ...]
    """Arguments of `--set`."""
    same_numbers: bool
    """False for a setting that changes the run's numbers."""
    peak: int
    """Bytes, by the estimate."""

    def __str__(self) -> str:
        """`--set resources.gpu=2 (52.1 GiB)`."""
        return f"{' '.join(f'--set {one}' for one in self.sets)} ({gib(self.peak)})"


_FLOPS = 1.0  # hours are not used
_GPUS = (2, 4, 8)
_SHOWN = 3
"""Methods that a message names."""


def check_plan(plan: Plan, benchmark: Dataset, device: int | None) -> list[str]:
    """Raise TrainingError where runs of `plan` do not fit; returns a line per unknown shape.

    device  bytes of a GPU's memory; None where there is none or it is not known
    """
    if device is None or not any(plan.config.resources_of(m.name).gpu for m in plan.config.models):
        return []
    found, unknown = estimate_plan(plan, benchmark, _FLOPS, device)
    refused = [one for one in found if not one.fits]
    if refused:
        raise TrainingError("; ".join(refusals(refused, plan.config, benchmark, device)))
    return [f"cannot check that runs fit into memory: {line}" for line in unknown]


def check_run(spec: RunSpec, config: SweepConfig, benchmark: Dataset) -> None:
    """Raise TrainingError where a run does not fit the GPU of this process."""
    device, resources = device_memory(), config.resources_of(spec.model.name)
    if device is None or not resources.gpu or not isinstance(method_from_spec(spec.method), Method):
        return
    try:
        one = estimate_run(spec, resources, benchmark, _FLOPS, device)
    except ModelError:
        return  # an unknown shape does not refuse the run
    if not one.fits:
        raise TrainingError("; ".join(refusals([one], config, benchmark, device)))


def refusals(
    refused: Sequence[Estimate], config: SweepConfig, benchmark: Dataset, device: int
) -> Iterator[str]:
    """A phrase for each model: its runs, their memory, the device's, and settings that fit."""
    for name in dict.fromkeys(one.run.model.name for one in refused):
        runs = [one for one in refused if one.run.model.name == name]
        worst = max(runs, key=lambda one: one.memory.peak)
        methods = list(dict.fromkeys(one.run.method.label for one in runs))
        others = f" and {len(methods) - _SHOWN} more" if len(methods) > _SHOWN else ""
        share = min(worst.resources.gpu, 1.0)
        part = "" if share == 1 else f"{share:g} of "
        found = list(remedies(runs, config, benchmark, device))
        same, other = (
            ", or ".join(str(one) for one in found if one.same_numbers is same)
            for same in (True, False)
        )
        phrases = [f"settings that fit: {same}"] if same else []
        phrases += [f"with other numbers: {other}"] if other else []
        yield (
            f"{name} does not fit its GPU with {', '.join(methods[:_SHOWN])}{others}: an estimated "
            f"{gib(worst.memory.peak)} of {part}{gib(device)}, of which {USABLE_SHARE:.0%} can be "
            f"used; {'; '.join(phrases) or 'no setting with which it fits is known'}"
        )


def remedies(
    refused: Sequence[Estimate], config: SweepConfig, benchmark: Dataset, device: int
) -> Iterator[Remedy]:
    """Settings with which all of `refused`, runs of one model, fit; with checkpointing if needed.

    Settings that change no number come first.
    """
    index = [model.name for model in config.models].index(refused[0].run.model.name)
    key = f"models.{index}.gradient_checkpointing=true"
    enough = False
    for sets, model, training, gpus in _changes(refused[0], config, index):
        if enough and gpus:
            continue  # more GPUs than needed
        peak = _peak(refused, model, training, gpus, benchmark, device)
        if peak is None and key not in sets and not refused[0].run.model.gradient_checkpointing:
            sets = (key, *sets)
            model = model | {"gradient_checkpointing": True}
            peak = _peak(refused, model, training, gpus, benchmark, device)
        if peak is not None:
            enough = enough or bool(gpus)
            same = not {"lora", "dtype", "optimizer"} & (model | training).keys()
            yield Remedy(sets, same, peak)


_Change = tuple[tuple[str, ...], dict[str, Any], dict[str, Any], int]
"""Arguments of `--set`; changes of the model and of its training; GPUs, or 0."""


def _changes(one: Estimate, config: SweepConfig, index: int) -> Iterator[_Change]:
    """Single changes that need less memory."""
    place, spec = f"models.{index}", one.run
    if not spec.model.gradient_checkpointing:
        on = {"gradient_checkpointing": True}
        yield (f"{place}.gradient_checkpointing=true",), on, {}, 0
    if (spec.training.micro_batch_size or 1) > 1:
        yield ("training.micro_batch_size=null",), {}, {"micro_batch_size": None}, 0
    if spec.training.optimizer not in EIGHT_BIT:
        own = f"{place}." if config.models[index].resources is not None else ""
        for gpus in _GPUS:
            if gpus > one.resources.gpu:
                yield (f"{own}resources.gpu={gpus}",), {}, {}, gpus
        if one.resources.world_size == 1:
            name = "paged-adamw-8bit"
            yield (f"training.optimizer={name}",), {}, {"optimizer": name}, 0
    if spec.model.dtype != "bfloat16":
        yield (f"{place}.dtype=bfloat16",), {"dtype": "bfloat16"}, {}, 0
    if spec.model.lora is None:
        yield (f"{place}.lora={{}}",), {"lora": LoRA()}, {}, 0


def _peak(
    refused: Sequence[Estimate],
    model: dict[str, Any],
    training: dict[str, Any],
    gpus: int,
    benchmark: Dataset,
    device: int,
) -> int | None:
    """The largest peak of the runs with these changes; None where one does not fit."""
    peaks: list[int] = []
    for one in refused:
        changes = {
            "model": one.run.model.model_copy(update=model),
            "training": one.run.training.model_copy(update=training),
        }
        spec, resources = one.run.model_copy(update=changes), one.resources
        if gpus:
            resources = resources.model_copy(update={"gpu": float(gpus), "processes": None})
        try:
            found = estimate_run(spec, resources, benchmark, _FLOPS, device)
        except ModelError:
            return None
        if not found.fits:
            return None
        peaks.append(found.memory.peak)
    return max(peaks)


def gib(size: float) -> str:
    """`25.1 GiB`."""
    return f"{size / 2**30:.1f} GiB"
