"""Every installed modifier conforms; modifiers with a fault do not."""

import pytest

from unlearnbench.api import registry
from unlearnbench.api.modifier import Modifier
from unlearnbench.testing import SUITES, ModifierConformance, check_plugin

from . import broken_modifiers as broken


def verdicts(modifier: type[Modifier] | str, *only: str) -> dict[str, str]:
    return {r.check.name: r.outcome.verdict for r in check_plugin("modifiers", modifier, only=only)}


@pytest.mark.parametrize("name", registry.names("modifiers"))
def test_every_installed_modifier_conforms(name: str) -> None:
    results = check_plugin("modifiers", name)
    assert [r.check.name for r in results] == [check.name for check in SUITES["modifiers"]]
    assert not [(r.check.name, r.outcome) for r in results if r.outcome.verdict == "fault"]


@pytest.mark.parametrize(
    ("modifier", "checks"),
    [
        (broken.ConstantPenalty, {"effect"}),
        (broken.Doubled, {"neutral"}),
        (broken.Subtracted, {"restored"}),
        (broken.MeanOfItsOwn, {"resumed"}),
        (broken.Counting, {"repeatable"}),
        (broken.MaskOfNothing, {"frozen", "adapters"}),
        (broken.BaseWeights, {"adapters"}),
    ],
)
def test_a_fault_is_caught(modifier: type[Modifier], checks: set[str]) -> None:
    found = verdicts(modifier)
    no_equation = {"docstring"}
    assert {name for name, verdict in found.items() if verdict == "fault"} == checks | no_equation


class TestSAM(ModifierConformance):
    """As an author writes it."""

    modifier = "sam"
    settings = {"rho": 0.1}  # noqa: RUF012  # as short as authors write it
