"""The attacker of a search that is reported for a model; `attacker_choice` chooses it."""

from dataclasses import dataclass

from unlearnbench.analysis.wording import counted

TUNED = "tuned"
"""Point of the variant that stands for all attackers of a search."""


def tuned_variant(attack: str) -> str:
    """Return the name of the variant that stands for all trial points: `relearning@tuned`."""
    return f"{attack}@{TUNED}"


@dataclass(frozen=True)
class TunedAttacker:
    """The attacker that was chosen for a model, and how."""

    variant: str
    """Its trial point, such as `relearning@t3.13`."""
    settings: str
    """For people: `learning rate 0.0004, LoRA rank 8, 13 steps`."""
    trials: int
    """Number of attackers that were tried."""
    choosing_seeds: tuple[int, ...]
    reporting_seeds: tuple[int, ...]

    @property
    def count_text(self) -> str:
        """`the strongest of 8 attackers`."""
        return f"the strongest of {counted(self.trials, 'attacker')}"
