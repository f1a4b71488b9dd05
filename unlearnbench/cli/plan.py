"""`unlearnbench plan`: the runs of a configuration, their work, memory and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from unlearnbench.base.console import Console
from unlearnbench.base.garbage_collection import import_torch
from unlearnbench.cli.command import command, flag, new_group, option
from unlearnbench.cli.options import Config, Json, Overrides, Plugins, register_plugins

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Dataset
    from unlearnbench.config.plan import Plan

FLOPS = 400e12
"""FLOP/s of one process: bf16 on an H100 or H200 (989e12) at 40 %."""

app = new_group()


@command(app, "plan")
def plan(
    config: Config,
    memory: Annotated[
        bool, flag("--memory", "Also print memory and hours of each kind of run, on GPUs.")
    ] = False,
    flops: Annotated[
        float,
        option("N", "FLOP/s of a process.", min=1, default="400e12, 40 % of an H100's in bf16"),
    ] = FLOPS,
    device_memory: Annotated[
        float | None,
        option("GB", "Memory of a GPU in 1e9 bytes.", min=0.1, default="this machine's, else 80"),
    ] = None,
    gpus: Annotated[
        int | None, option("N", "GPUs of the sweep, for its wall time.", min=1, default="a run's")
    ] = None,
    overrides: Overrides = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Print the runs of a config and what they cost. Nothing is run or written.

    Examples:
      unlearnbench plan quickstart
      unlearnbench plan my.yaml --set seeds=[0,1,2] --json
      unlearnbench plan tofu_phi_1_5 --memory --flops 200e12
      unlearnbench plan tofu_llama2_7b --memory --gpus 8
    """
    planned, rows = plan_runs(config, overrides, plugins)
    from unlearnbench.cli.plan_cost import GpuCosts
    from unlearnbench.cli.plan_view import PlanView
    from unlearnbench.results.sweep_folder import check_owner

    check_owner(planned)
    view = PlanView.of(planned, rows)
    costs: GpuCosts | None = None
    # Options about GPUs would have no effect without their estimates.
    wants_costs = memory or gpus is not None or device_memory is not None or flops != FLOPS
    if wants_costs:
        costs = GpuCosts.of(
            view.whole,
            rows,
            view.models,
            flops=flops,
            device_gigabytes=device_memory,
            gpus=gpus,
        )
    console = Console()
    if as_json:
        console.print_json(view.document(costs))
        return
    view.print(console)
    if costs is not None:
        costs.print(console)


def plan_runs(
    config: str, overrides: Sequence[str] | None, plugins: list[str] | None
) -> tuple[Plan, Dataset]:
    """Plan a configuration, and print the warnings that came up.

    Args:
        config: File, or the name of an installed configuration.
        overrides: As they were typed: `seeds=[0,1]`.
        plugins: Files with plug-ins.

    Returns:
        The plan, and the benchmark's rows.
    """
    from unlearnbench.config.loader import load_config

    register_plugins(plugins)
    settings = load_config(config, overrides or ())
    import_torch()
    from unlearnbench.base.deferred_warnings import drain
    from unlearnbench.runs.plan_sweep import plan_sweep

    planned = plan_sweep(settings)
    for line in drain():
        Console().note(f"warning: {line}")
    return planned
