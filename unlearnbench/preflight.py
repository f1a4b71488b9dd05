"""Refuse runs that do not fit their device, by the estimate of their memory, before they begin.

A refusal names settings with which they fit, each held against the same estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.data.benchmark import Benchmark
from unlearnbench.device import USABLE, device_memory
from unlearnbench.errors import ModelError, TrainingError
from unlearnbench.method import Method
from unlearnbench.plan import Plan, RunSpec
from unlearnbench.recipe import EIGHT_BIT
from unlearnbench.registry import method_from_spec
from unlearnbench.settings import LoRA, SweepConfig
from unlearnbench.sizing import Estimate, estimate_of, estimates


@dataclass(frozen=True)
class Remedy:
    """Settings with which runs fit."""

    sets: tuple[str, ...]
    """Keys and values as `--set` takes them."""
    same_numbers: bool
    """False where what is trained, or how, is another."""
    peak: int
    """Bytes, by the estimate."""

    def __str__(self) -> str:
        """`--set resources.gpu=2 (52.1 GiB)`."""
        return f"{' '.join(f'--set {one}' for one in self.sets)} ({gib(self.peak)})"


_FLOPS = 1.0  # hours are not looked at
_GPUS = (2, 4, 8)
_SHOWN = 3
"""Methods that a message names."""


def check_plan(plan: Plan, benchmark: Benchmark, device: int | None) -> list[str]:
    """Raise TrainingError where runs of `plan` do not fit; returns what is not known, by line.

    device  bytes of a GPU's memory; None where there is none or it is not known
    """
    if device is None or not any(plan.config.resources_of(m.name).gpu for m in plan.config.models):
        return []
    found, unknown = estimates(plan, benchmark, _FLOPS, device)
    refused = [one for one in found if not one.fits]
    if refused:
        raise TrainingError("; ".join(refusals(refused, plan.config, benchmark, device)))
    return [f"whether its runs fit into memory is not known: {line}" for line in unknown]


def check_run(spec: RunSpec, config: SweepConfig, benchmark: Benchmark) -> None:
    """Raise TrainingError where a run does not fit the GPU of this process."""
    device, resources = device_memory(), config.resources_of(spec.model.name)
    if device is None or not resources.gpu or not isinstance(method_from_spec(spec.method), Method):
        return
    try:
        one = estimate_of(spec, resources, benchmark, _FLOPS, device)
    except ModelError:
        return  # an unknown shape is no reason against the run
    if not one.fits:
        raise TrainingError("; ".join(refusals([one], config, benchmark, device)))


def refusals(
    refused: Sequence[Estimate], config: SweepConfig, benchmark: Benchmark, device: int
) -> Iterator[str]:
    """A phrase for each model: its runs, what they take, what there is, and what fits."""
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
        phrases = [f"what fits: {same}"] if same else []
        phrases += [f"with other numbers: {other}"] if other else []
        yield (
            f"{name} does not fit its GPU with {', '.join(methods[:_SHOWN])}{others}: an estimated "
            f"{gib(worst.memory.peak)} of {part}{gib(device)}, of which {USABLE:.0%} can be used; "
            f"{'; '.join(phrases) or 'no setting is known with which it fits'}"
        )


def remedies(
    refused: Sequence[Estimate], config: SweepConfig, benchmark: Benchmark, device: int
) -> Iterator[Remedy]:
    """Settings with which all of `refused`, runs of one model, fit; with checkpointing if need be.

    Those that change no number come first.
    """
    index = [model.name for model in config.models].index(refused[0].run.model.name)
    key = f"models.{index}.gradient_checkpointing=true"
    again = {"gradient_checkpointing": True}
    enough = False
    for sets, model, training, gpus in _changes(refused[0], config, index):
        if enough and gpus:
            continue  # more GPUs than needed
        peak = _peak(refused, model, training, gpus, benchmark, device)
        if peak is None and key not in sets and not refused[0].run.model.gradient_checkpointing:
            sets = (key, *sets)
            peak = _peak(refused, model | again, training, gpus, benchmark, device)
        if peak is not None:
            enough = enough or bool(gpus)
            same = "lora" not in model and "dtype" not in model and "optimizer" not in training
            yield Remedy(sets, same, peak)


_Change = tuple[tuple[str, ...], dict[str, Any], dict[str, Any], int]
"""Keys as `--set` takes them; what changes of a model and of its training; GPUs, or 0."""


def _changes(one: Estimate, config: SweepConfig, index: int) -> Iterator[_Change]:
    """Changes that take less memory, each by itself."""
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
        if one.resources.world == 1:
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
    benchmark: Benchmark,
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
            found = estimate_of(spec, resources, benchmark, _FLOPS, device)
        except ModelError:
            return None
        if not found.fits:
            return None
        peaks.append(found.memory.peak)
    return max(peaks)


def gib(size: float) -> str:
    """`25.1 GiB`."""
    return f"{size / 2**30:.1f} GiB"
