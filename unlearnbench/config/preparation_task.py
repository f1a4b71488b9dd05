"""The work that runs wait for; free of torch, because Ray's coordinators only pass it on."""

from dataclasses import dataclass

from unlearnbench.api.benchmark import SplitKey, split_text


@dataclass(frozen=True)
class PreparationTask:
    """A model to prepare, or a start or retain model to evaluate."""

    label: str
    after: tuple[str, ...]
    """Ids of the tasks that it waits for."""
    model: str
    target: str
    """Model to prepare or evaluate: `base`, `full`, or the retain model's name."""
    fraction: SplitKey | None = None
    """Split of an evaluation; None for a model to prepare."""
    attack: str = ""
    """Attack under which it is evaluated; empty for the plain evaluation."""
    done: bool = False

    @property
    def id(self) -> str:
        """Such as `tiny/retain90@0.1 under relearning`."""
        at = "" if self.fraction is None else f"@{split_text(self.fraction)}"
        under = f" under {self.attack}" if self.attack else ""
        return f"{self.model}/{self.target}{at}{under}"
