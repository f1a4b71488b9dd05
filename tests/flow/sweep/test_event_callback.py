"""What the sweep learns from the steps of a trial that bring no new result."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from unlearnbench.config.plan import make_plan
from unlearnbench.sweep.trial_messages import parameters

from .test_driver import a_config


@pytest.mark.parametrize(
    ("end", "is_learned"),
    [
        ({}, True),
        ({"failed": "Traceback\nValueError: no"}, False),
        ({"crowded": True}, False),
    ],
)
def test_the_last_step_of_a_run_is_the_time_of_its_last_attacks(
    end: dict[str, Any], is_learned: bool, tmp_path: Path
) -> None:
    from unlearnbench.sweep.tune_adapters import EventCallback  # it imports Ray

    config = a_config(tmp_path, (1e-5,))
    run = make_plan(config, "data").runs[0]
    state: Any = Mock()
    anything: Any = Mock()
    callback = EventCallback(state, config, anything, {run.id: run}, None, anything)
    trial = SimpleNamespace(trial_id="1", config={"run": parameters(run)})
    result = {"warnings": [], "repeated": True, "done": True, "time_this_iter_s": 42.0, **end}
    callback.on_trial_result(1, [trial], trial, result)
    if is_learned:
        state.progress.attacked.assert_called_once_with(run, 42.0)
    else:
        state.progress.attacked.assert_not_called()
    state.epoch_ended.assert_not_called()
