"""The baselines of runs: evaluations of the start model and, for each split, of a retain model.

A model is called by its *target*: `full` is the start model, and `retain90` the retain model of the
split `forget10`. A baseline is evaluated once, and once more under each attack. Each evaluation has
a record, whose id is the hash of everything that determines its numbers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from unlearnbench.api.benchmark import Dataset, SplitKey, split_name
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.hashing import content_hash
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.models.rows_loading import fingerprint
from unlearnbench.results.records import Record, read_record
from unlearnbench.results.remote_copies import Storage
from unlearnbench.runs.model_sources import ModelSources

START = "full"
"""Target of the start model."""


class ComparedWith(NamedTuple):
    """The evaluations that an evaluation is compared with, all of them under the same attack.

    Each is None if there is no such model, or no evaluation of it yet.
    """

    retain: Evaluation | None
    start: Evaluation | None


class Baselines:
    """Records and evaluations of the start and retain models of one configuration."""

    def __init__(
        self,
        config: SweepConfig,
        folder: Path,
        benchmark: Dataset,
        models: Mapping[str, ModelSources],
        storage: Storage,
    ) -> None:
        """Look for records in the folder of a sweep.

        Args:
            config: The configuration.
            folder: The sweep's folder.
            benchmark: The rows.
            models: The models of the configuration, by the names of their settings.
            storage: Copies of records elsewhere.
        """
        self._config = config
        self._records = folder / "records"
        self._benchmark = benchmark
        self._models = models
        self._storage = storage
        self._identities: dict[tuple[str, str, SplitKey], list[str | float]] = {}
        """By model, target and split. To hash the rows takes longer than to set up some runs."""
        self._evaluations: dict[tuple[Path, str], Evaluation] = {}
        """By record and variant. All runs get the same object, which caches what it computes."""

    @property
    def has_retain(self) -> bool:
        """Whether runs are compared with a retain model."""
        return "retain" in self._config.references

    def identity(self, model: str, target: str, split: SplitKey) -> list[str | float]:
        """Return the value that `evaluation_id` is the hash of."""
        key = (model, target, split)
        if key not in self._identities:
            data = fingerprint(self._benchmark, split)
            self._identities[key] = self._models[model].evaluation_identity(
                target, split, data, self._config.evaluation
            )
        return self._identities[key]

    def evaluation_id(self, model: str, target: str, split: SplitKey) -> str:
        """Return the id of the record of a baseline without an attack."""
        return content_hash(self.identity(model, target, split))

    def record_folder(
        self, model: str, target: str, split: SplitKey, attack: AttackSpec | None = None
    ) -> Path:
        """Return the folder of the record of a baseline, under an attack or without one."""
        if attack is None:
            return self._records / self.evaluation_id(model, target, split)
        identity = self.identity(model, target, split)
        return self._records / self._models[model].attack_id(
            identity, attack, self._config.training
        )

    def records(self, model: str, split: SplitKey) -> tuple[Record, ...]:
        """Return the records of the start and retain model that exist, also under attacks."""
        targets = [START]
        if self.has_retain:
            targets.append(split_name("retain", split))
        found: list[Record] = []
        for target in targets:
            for attack in (None, *self._config.attacks):
                folder = self.record_folder(model, target, split, attack)
                if folder.is_dir():
                    found.append(read_record(folder))
        return tuple(found)

    def evaluations(
        self, model: str, split: SplitKey, attack: AttackSpec | None = None, variant: str = ""
    ) -> ComparedWith:
        """Return what a run is compared with.

        Args:
            model: Name of the model's settings.
            split: The split of the run.
            attack: The attack that the run is under, if any.
            variant: The point of the attack, such as `relearning@13`.

        Raises:
            RecordError: The retain model has not been evaluated without an attack.
        """
        return ComparedWith(
            retain=self.retain_evaluation(model, split, attack, variant),
            start=self.start_evaluation(model, split, attack, variant),
        )

    def start_evaluation(
        self, model: str, split: SplitKey, attack: AttackSpec | None = None, variant: str = ""
    ) -> Evaluation | None:
        """Return the evaluation of the start model, or None if it has not been evaluated."""
        record = self.record_folder(model, START, split, attack)
        return self._evaluation(record, variant, under_attack=attack is not None)

    def retain_evaluation(
        self, model: str, split: SplitKey, attack: AttackSpec | None = None, variant: str = ""
    ) -> Evaluation | None:
        """Return the evaluation of the retain model of a split.

        Returns:
            None if there is no retain model, or if it has not been evaluated under the attack.

        Raises:
            RecordError: It has not been evaluated without an attack, which comes before any run.
        """
        if not self.has_retain:
            return None
        record = self.record_folder(model, split_name("retain", split), split, attack)
        return self._evaluation(
            record, variant, under_attack=attack is not None, is_required=attack is None
        )

    def _evaluation(
        self, record: Path, variant: str, *, under_attack: bool, is_required: bool = False
    ) -> Evaluation | None:
        """Return the evaluation in a record; None if it is missing and not required."""
        is_here = self._storage.fetch(record)
        if not is_here and not is_required:
            return None
        key = (record, variant)
        if key not in self._evaluations:
            stored = read_record(record)
            if not under_attack:
                self._evaluations[key] = stored.evaluations[0]
            elif (0, variant) in stored.attacked_evaluations:
                self._evaluations[key] = stored.attacked_evaluations[0, variant]
        return self._evaluations.get(key)
