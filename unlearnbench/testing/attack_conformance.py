"""All checks on one attack: from a test (`AttackConformance`) or a command (`check_attack`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from unlearnbench.api import registry
from unlearnbench.api.attack import Attack
from unlearnbench.config.plugin_settings import example
from unlearnbench.testing.attack_checks import ATTACK_CHECKS
from unlearnbench.testing.attack_lab import AttackLab
from unlearnbench.testing.check import Conformance, Result, run_checks


def check_attack(
    attack: type[Attack] | str,
    settings: Mapping[str, Any] | None = None,
    only: Collection[str] = (),
) -> Sequence[Result]:
    """Run all checks, or `only` those named, on an attack (a class, or a registered name).

    Raises: PluginError for an unknown attack or check, or for refused values.
    """
    kind = registry.load("attacks", attack) if isinstance(attack, str) else attack
    name = attack if isinstance(attack, str) else kind.__name__
    instance = example(kind, settings or {}, name)
    return run_checks(ATTACK_CHECKS, instance, AttackLab(instance, name), only)


class AttackConformance(Conformance):
    """Every check as a test; derive a class, and name the attack.

    class TestMyAttack(AttackConformance):
        attack = MyAttack
    """

    attack: ClassVar[type[Attack] | str]
    """The class, or the name it is registered under."""
    checks = ATTACK_CHECKS

    @classmethod
    def results(cls) -> Sequence[Result]:
        """Run all checks."""
        return check_attack(cls.named("attack"), cls.settings)
