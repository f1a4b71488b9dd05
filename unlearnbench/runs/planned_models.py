"""The models that a plan trains before its runs: named and counted, without training any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unlearnbench.api.benchmark import Dataset, split_name
from unlearnbench.plan.plan import Plan
from unlearnbench.runs.model_sources import ModelSources
from unlearnbench.runs.prepared_models import is_prepared


@dataclass(frozen=True)
class PlannedModel:
    """One model to prepare."""

    model: str
    """Name of its settings."""
    target: str
    """`base`, `full`, or a retain model's name, such as `retain90`."""
    what: str
    rows: int
    epochs: int
    is_tiny: bool
    done: bool
    """True if the cache has it; of models that are not built here that is not looked up."""

    @property
    def title(self) -> str:
        """Name and training on one line."""
        return f"{self.model}: {self.what}, {self.epochs} epochs of {self.rows} rows"


def planned_models(plan: Plan, benchmark: Dataset) -> Iterator[PlannedModel]:
    """Yield the models that the runs of a plan start from or are compared with, in order."""
    needs_retain = "retain" in plan.config.data.references
    for settings in plan.config.models:
        runs = [run for run in plan.runs if run.model.name == settings.name]
        models = ModelSources(settings, benchmark, plan.config.cache_folder)
        how, tiny = settings.preparation, models.is_tiny

        def of(
            target: str, what: str, models: ModelSources = models, epochs: int = how.epochs
        ) -> PlannedModel:
            is_base = target == "base"
            rows = models.base_rows() if is_base else models.tuning_rows(target)
            # Of a published base the folder's name has the hash of its weights: gigabytes to read.
            done = models.is_tiny and is_prepared(
                models.base_folder() if is_base else models.tuned_folder(target)
            )
            return PlannedModel(
                models.settings.name, target, what, len(rows), epochs, models.is_tiny, done
            )

        if tiny:
            yield of("base", "tiny base model", epochs=how.base_epochs)
        if settings.fine_tuned is None:
            yield of("full", "start model, on all rows")
        for fraction in dict.fromkeys(run.forget_fraction for run in runs):
            name = split_name("retain", fraction)
            if needs_retain and name not in settings.retain:
                yield of(name, f"retain model {name}")
