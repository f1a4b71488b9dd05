"""The attacker of a search that is reported for a model; `attacker_choice` chooses it."""

from dataclasses import dataclass

from unlearnbench.analysis.wording import counted, listed_seeds


@dataclass(frozen=True)
class TunedAttacker:
    """The attacker that was chosen for a model, and how."""

    variant: str
    """Its trial point, such as `relearning@t3.13`."""
    settings: str
    """For people: `learning rate 0.0004, LoRA rank 8, 13 steps`."""
    trials: int
    """Number of attackers that were tried."""
    counting: int
    """Number of trial points that left enough utility. The attacker is the strongest of them."""
    choosing_seeds: tuple[int, ...] = ()
    """Seeds of the setting that chose the attacker."""
    reporting_seeds: tuple[int, ...] = ()
    """Seeds of the setting that its numbers are of."""
    utility_kept: float | None = None
    """Share of its own utility that the attacked model keeps, as a mean over the reported seeds."""
    retain_after: float | None = None
    """The retain model's number under the attacker that was chosen for it; None if it is not
    known."""

    @property
    def count_text(self) -> str:
        """`the strongest of 8 attackers`."""
        return f"the strongest of {counted(self.trials, 'attacker')}"

    @property
    def seeds_text(self) -> str:
        """`chosen on seed 0, reported on seeds 1, 2`; on other rows of the seed if there is one."""
        chosen = f"chosen on {listed_seeds(self.choosing_seeds)}"
        if self.choosing_seeds == self.reporting_seeds:
            return f"{chosen}, reported on other rows"
        return f"{chosen}, reported on {listed_seeds(self.reporting_seeds)}"
