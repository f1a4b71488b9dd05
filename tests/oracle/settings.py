"""Which runs are seeds of one setting.

A setting is everything that a run depends on except its seed, evaluated after one epoch. Runs are
seeds of one setting if and only if their specs are equal apart from the seed and from what changes
no number: paths (hashes of contents stand beside them), the epochs at which a run was looked at,
and settings that only change how fast a run is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.oracle.read import Record

CHANGES_NO_NUMBER = {
    "model": {"adapter_base", "gradient_checkpointing", "resources"},
    "training": {"dropout", "ignore_label"},
    "evaluation": {"batch_tokens", "every"},
}
"""Settings by section that are no part of a run's id. Whether dropout and labels take part in a run
is stored beside them, because it depends on the model and on the method."""
_ABSENT: Mapping[str, Any] = {}


def settings_of(runs: Sequence[Record]) -> dict[str, str]:
    """Return a text by run id that is equal for the seeds of one setting, and only for them.

    A run of requests in sequence goes on from another run, which has the same seed. Its setting
    contains the setting of that other run.
    """
    by_id = {run.id: run for run in runs}
    return {run.id: _setting(run, by_id) for run in runs}


def _setting(run: Record, runs: Mapping[str, Record]) -> str:
    spec = dict(run.spec)
    del spec["seed"]
    spec.pop("data", None)  # its fingerprint is in the spec
    spec.pop("evaluate_at", None)
    for section, names in CHANGES_NO_NUMBER.items():
        values = spec.get(section) or _ABSENT
        spec[section] = {name: value for name, value in values.items() if name not in names}
    evaluation = spec["evaluation"]
    if not evaluation.get("stop_below") and not evaluation.get("patience"):
        # Metrics are computed from observations, so that they only matter if one can end a run.
        evaluation.pop("metrics", None)
    length = run.spec.get("steps") or run.spec.get("epochs")
    if list(run.spec.get("evaluate_at") or ()) == [length]:
        # A run that is only evaluated at its end has its number of epochs in the row's epoch. So a
        # setting of `epochs_as: runs` has one run for each number of epochs.
        spec.pop("epochs", None)
        spec.pop("steps", None)
    before = spec.pop("after", None)
    if before:
        spec["after"] = _setting(runs[before], runs) if before in runs else before
    return json.dumps(spec, sort_keys=True)
