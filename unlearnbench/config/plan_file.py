"""`plan.json`, the file with a sweep's configuration and runs: its keys, and values that are read.

`Plan.to_json` writes the file. A plan of a later command reads from it what the sweep began with.
"""

import json
from pathlib import Path
from typing import Any

from unlearnbench.stats.point_sequences import PointSequence

SCHEMA = 1
PLAN_FILE = "plan.json"
SEQUENCE = "sequence"
"""Key of the sequence of a quasi-random search. Plans of earlier versions have no such key."""
TRIAL = "trial"
"""Key of a run that says why the run is there, see `config/trial.py`. Plans of earlier versions do
not have it."""
UNKNOWN_RUNS = "unknown_runs"
"""Key of `Plan.unknown_runs`. Left out if there are none."""


def _read_plan(folder: Path) -> Any:
    return json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))


def planned_commits(folder: Path) -> dict[str, str]:
    """Read the commits of hub repositories from the plan in a sweep's folder.

    Returns:
        Commits by repository. Empty if there is no readable plan.
    """
    try:
        plan = _read_plan(folder)
    except (OSError, ValueError):  # no plan, or a damaged one: `check_owner` reports it
        return {}
    return dict(plan.get("hub", {}))


def planned_sequence(folder: Path) -> PointSequence:
    """Read with which quasi-random sequence a sweep began.

    Returns:
        `sobol`, which new sweeps use, if no quasi-random search is planned in the folder.
    """
    try:
        plan = _read_plan(folder)
        if plan["config"]["search"]["kind"] != "quasi-random":
            return "sobol"
        return "sobol" if plan.get(SEQUENCE) == "sobol" else "recurrence"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return "sobol"  # no plan, or a damaged one: `check_owner` reports it
