"""Work that has to be done before the runs of a sweep: models to prepare, baselines to evaluate."""

from dataclasses import dataclass

from unlearnbench.api.benchmark import SplitKey, split_text


@dataclass(frozen=True)
class PreparationTask:
    """One model to prepare, or one evaluation of a start or retain model."""

    label: str
    after: tuple[str, ...]
    """Ids of the tasks that this task waits for."""
    model: str
    """Name of the model in the configuration."""
    target: str
    """Model to prepare or evaluate: `base`, `full`, or the retain model's name."""
    fraction: SplitKey | None = None
    """Split of an evaluation. None if a model is prepared."""
    attack: str = ""
    """Attack under which the model is evaluated. Empty for the plain evaluation."""
    is_ahead: bool = False
    """Whether the evaluation is only stored, because the record needs that of another model too."""
    rows: int = 0
    """Rows that a model is trained on, summed over epochs. 0 for an evaluation."""
    done: bool = False

    @property
    def id(self) -> str:
        """Id such as `tiny/retain90@0.1 under relearning`: model, target, split and attack.

        The evaluation that comes before a record is `tiny/full@0.1 ahead`.
        """
        at = "" if self.fraction is None else f"@{split_text(self.fraction)}"
        under = f" under {self.attack}" if self.attack else ""
        ahead = " ahead" if self.is_ahead else ""
        return f"{self.model}/{self.target}{at}{under}{ahead}"
