"""Sweeps of made-up runs, with what they tell the user."""

from io import StringIO

from unlearnbench.base.console import Console
from unlearnbench.config.schema import SweepConfig
from unlearnbench.sweep.driver import run_sweep
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.sweep_state import SweepResult


def sweep(
    config: SweepConfig, pipeline: Pipeline, *, force: bool = False
) -> tuple[SweepResult, list[str]]:
    """Carry out a sweep; returns its result and the lines that it prints to stderr."""
    err = StringIO()
    result = run_sweep(config, Console(err=err), pipeline, force=force)
    return result, err.getvalue().splitlines()
