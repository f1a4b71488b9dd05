"""`attacks:` of a configuration: resolved settings, clear mistakes, the same after JSON."""

from __future__ import annotations

import pytest

from unlearnbench.config.entries import attack_from_spec
from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import SweepConfig
from unlearnbench.errors import PluginError


def test_attacks_are_resolved_sorted_and_survive_json() -> None:
    config = load_config("quickstart", ["attacks={relearning: {steps: [2, 5]}, paraphrase: {}}"])
    assert [spec.name for spec in config.attacks] == ["paraphrase", "relearning"]
    relearning = config.attacks[1]
    assert relearning.settings["steps"] == [2, 5]
    assert "at" not in relearning.identity["settings"]
    assert attack_from_spec(relearning).points() == ("0", "2", "5")
    assert SweepConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(PluginError, match="differs from the one that was planned"):
        attack_from_spec(relearning.model_copy(update={"version": 0}))
