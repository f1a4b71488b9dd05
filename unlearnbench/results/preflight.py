"""Refuse runs whose estimated memory does not fit their device, before they begin."""

from collections.abc import Iterator, Sequence

from unlearnbench.api.benchmark import Dataset
from unlearnbench.api.method import Method
from unlearnbench.base.errors import ModelError, TrainingError
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.plan import Plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.models.device import USABLE_SHARE, device_memory
from unlearnbench.results.run_estimate import Estimate, estimate_plan, estimate_run

_FLOPS = 1.0  # hours are not used
_SHOWN = 3
"""Methods that a message names."""


def check_plan(plan: Plan, benchmark: Dataset, device: int | None) -> list[str]:
    """Raise TrainingError where runs of `plan` do not fit; returns a line per unknown shape.

    device  bytes of a GPU's memory; None where there is none or it is not known
    """
    if device is None or not any(plan.config.resources_of(m.name).gpu for m in plan.config.models):
        return []
    result, unknown = estimate_plan(plan, benchmark, _FLOPS, device)
    refused = [item for item in result if not item.fits]
    if refused:
        raise TrainingError("; ".join(refusals(refused, device)))
    return [f"cannot check that runs fit into memory: {line}" for line in unknown]


def check_run(spec: RunSpec, config: SweepConfig, benchmark: Dataset) -> None:
    """Raise TrainingError where a run does not fit the GPU of this process."""
    device, resources = device_memory(), config.resources_of(spec.model.name)
    if device is None or not resources.gpu or not isinstance(method_from_spec(spec.method), Method):
        return
    try:
        item = estimate_run(spec, resources, benchmark, _FLOPS, device)
    except ModelError:
        return  # an unknown shape does not refuse the run
    if not item.fits:
        raise TrainingError("; ".join(refusals([item], device)))


def refusals(refused: Sequence[Estimate], device: int) -> Iterator[str]:
    """A phrase for each model: its runs, their memory, the device's, and what needs less."""
    for name in dict.fromkeys(estimate.run.model.name for estimate in refused):
        runs = [estimate for estimate in refused if estimate.run.model.name == name]
        worst = max(runs, key=lambda estimate: estimate.memory.peak)
        methods = list(dict.fromkeys(estimate.run.method.label for estimate in runs))
        others = f" and {len(methods) - _SHOWN} more" if len(methods) > _SHOWN else ""
        share = min(worst.resources.gpu, 1.0)
        part = "" if share == 1 else f"{share:g} of "
        yield (
            f"{name} does not fit its GPU with {', '.join(methods[:_SHOWN])}{others}: an estimated "
            f"{gib(worst.memory.peak)} of {part}{gib(device)}, of which {USABLE_SHARE:.0%} can be "
            "used; less memory, and the same numbers: gradient_checkpointing: true of the model, "
            "resources.gpu: 2 or more; other numbers: lora, dtype: bfloat16, an 8-bit optimizer "
            "(`plan --memory` estimates each)"
        )


def gib(size: float) -> str:
    """`25.1 GiB`."""
    return f"{size / 2**30:.1f} GiB"
