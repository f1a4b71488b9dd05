"""Data, models and evaluators of a configuration, loaded once in a process."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from unlearnbench.api.benchmark import Dataset, SplitKey, split_name
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.profile import Profile
from unlearnbench.base import hub
from unlearnbench.base.hashing import content_hash
from unlearnbench.base.row_texts import hide_row_texts
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.schema import SweepConfig
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.private_texts import without_texts
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.evaluation.summary import plan_of, summarize
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows, training_rows
from unlearnbench.models.identity_entries import template_of
from unlearnbench.models.limits import context_length, pad_id
from unlearnbench.models.loading import load_model
from unlearnbench.models.rows_loading import fingerprint, load_benchmark
from unlearnbench.models.whole_model import load_tokenizer, read_config
from unlearnbench.results.finalize import inputs_entry
from unlearnbench.results.records import Record, read_record
from unlearnbench.results.remote_copies import storage_of
from unlearnbench.results.rules import RecordRules, observed_by_entry, record_rules
from unlearnbench.runs.model_sources import ModelSources
from unlearnbench.runs.prepared_models import ModelPreparer
from unlearnbench.training.fine_tuning import FineTuner


class Workspace:
    """Data, models and evaluators of one configuration."""

    def __init__(self, config: SweepConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.cache = config.cache_folder
        self.storage = storage_of(config, folder)
        self.benchmark: Dataset = load_benchmark(config.data, config.split_keys)
        self.profile: Profile = profile_of(config.evaluation)
        self.headline = config.headline
        self._models = {
            settings.name: ModelSources(settings, self.benchmark, self.cache)
            for settings in config.models
        }
        self._tokenizers: dict[str, Any] = {}
        self._evaluators: dict[tuple[str, SplitKey], Evaluator] = {}
        self._rows: dict[tuple[str, SplitKey, int, bool, int], TrainingRows] = {}
        self._identities: dict[tuple[str, str, SplitKey], list[str | float]] = {}
        self._tuners: dict[str, FineTuner] = {}
        self._start: tuple[str, Any] | None = None
        self._compared: dict[str, Evaluation] = {}
        self._fingerprints: dict[SplitKey, str] = {}

    @cached_property
    def rules(self) -> RecordRules:
        """What the numbers of records are computed by."""
        section = self.config.data.model_dump(mode="json")
        return record_rules(
            section,
            self.profile.id,
            self.config.evaluation.metrics,
            has_retain="retain" in self.config.references,
        )

    @property
    def metrics(self) -> MetricPlan:
        """The metrics that evaluations report."""
        return plan_of(
            self.profile,
            self.config.data,
            self.config.evaluation.metrics,
            self.config.references,
        )

    def summary(
        self, evaluation: Evaluation, retain: Evaluation | None, start: Evaluation | None
    ) -> dict[str, float | None]:
        """All metrics of an evaluation, see `summarize`."""
        return summarize(
            evaluation,
            retain,
            self.profile,
            start,
            self.config.data,
            self.config.evaluation.metrics,
            self.config.references,
        )

    def kept(self, evaluation: Evaluation, split: SplitKey) -> Evaluation:
        """An evaluation as it is stored: without texts if `keep_texts` is false."""
        if self.config.keep_texts:
            return evaluation
        if split not in self._fingerprints:
            self._fingerprints[split] = fingerprint(self.benchmark, split)
        return without_texts(evaluation, self.metrics.measures, self._fingerprints[split])

    def models(self, name: str) -> ModelSources:
        """Base, start and retain models of the settings called `name`."""
        return self._models[name]

    def preparer(self, name: str) -> ModelPreparer:
        """Preparation of these models."""
        parallel = self.config.resources_of(name).parallel
        return ModelPreparer(self.models(name), parallel, self.storage)

    def tokenizer(self, model: str) -> Any:
        """Tokenizer of `model`: of its base, since not every fine-tuned checkpoint has one."""
        if model not in self._tokenizers:
            self.preparer(model).ensure_prepared("base")
            models = self.models(model)
            self._tokenizers[model] = load_tokenizer(models.base(), models.settings)
        return self._tokenizers[model]

    def encoder(self, model: str, max_length: int, *, ignore_label: bool = True) -> Encoder:
        """Encoder of text to rows for `model`."""
        tokenizer = self.tokenizer(model)
        settings = self.models(model).settings
        return Encoder(
            tokenizer,
            template_of(settings, tokenizer),
            max_length,
            ignore_label=ignore_label,
            further_stops=self.models(model).stops,
            eos_as_padding=settings.eos_as_padding,
        )

    def rows(self, model: str, fraction: SplitKey, encoder: Encoder, skipped: int) -> TrainingRows:
        """The rows of a run as tokens of `model`, which `encoder` makes; see `training_rows`."""
        key = (model, fraction, encoder.max_length, encoder.ignore_label, skipped)
        if key not in self._rows:
            self._rows[key] = training_rows(self.benchmark, fraction, encoder, skipped)
        return self._rows[key]

    def fine_tuner(self, model: str) -> FineTuner:
        """Fine-tuning of `model` by attacks, in the precision and length of the runs' training."""
        if model not in self._tuners:
            training = self.config.training
            encoder = self.encoder(model, training.max_length)
            pad = pad_id(encoder.tokenizer)
            self._tuners[model] = FineTuner(
                encoder, pad, training.precision, training.micro_batch_size
            )
        return self._tuners[model]

    def evaluator(self, model: str, fraction: SplitKey) -> Evaluator:
        """Evaluator of all sets at `fraction` for `model`."""
        key = (model, fraction)
        if key not in self._evaluators:
            encoder = self.encoder(model, self.profile.max_length)
            self._evaluators[key] = Evaluator(
                evaluation_sets(self.benchmark, fraction, self.profile),
                encoder.tokenizer,
                encoder.template,
                self.profile,
                pad_id(encoder.tokenizer),
                self.config.evaluation.batch_tokens,
                self.config.evaluation.precision,
                self.config.data.set_roles,
                extra=self.metrics.extra,
                observations=self.metrics.observations,
                context=self._context(model),
            )
        return self._evaluators[key]

    def _context(self, model: str) -> int | None:
        """The tokens that `model` can read; None where the profile has a length of its own."""
        if not self.profile.reads_whole_context:
            return None
        self.preparer(model).ensure_prepared("base")
        models = self.models(model)
        return context_length(read_config(models.base(), models.settings))

    def with_start_losses(
        self, model: str, fraction: SplitKey, evaluation: Evaluation, start: Any = None
    ) -> Evaluation:
        """Add the losses of an evaluation's answers under the start model, where they are read.

        start  the start model, if it is loaded; else it stays in memory from now on

        Collective.
        """
        if "start_loss" not in self.metrics.extra:
            return evaluation
        if start is None:
            if self._start is None or self._start[0] != model:
                self._start = None  # its memory must be free before the next one is loaded
                self.preparer(model).ensure_prepared("full")
                models = self.models(model)
                self._start = model, load_model(models.full(), models.settings)
            start = self._start[1]
        return self.evaluator(model, fraction).with_start_losses(evaluation, start)

    def commits(self, model: str, target: str) -> dict[str, str]:
        """Commits of the hub at which the model called `target` and the data are read."""
        models = self.models(model)
        source = models.target(target)
        read = [model_source.whole.repository for model_source in (models.base(), source)]
        return hub.commits_of([*read, *self.config.data.repositories.values()])

    def evaluation_id(self, model: str, target: str, fraction: SplitKey) -> str:
        """Id of the record of a start model's (`full`) or retain model's evaluation."""
        return content_hash(self.evaluation_identity(model, target, fraction))

    def evaluation_identity(self, model: str, target: str, fraction: SplitKey) -> list[str | float]:
        """Value that `evaluation_id` is the hash of, see `ModelSources.evaluation_identity`."""
        if identity := self._identities.get((model, target, fraction)):
            return identity  # hashing the rows takes longer than some runs' set-up
        data = fingerprint(self.benchmark, fraction)
        identity = self.models(model).evaluation_identity(
            target, fraction, data, self.config.evaluation
        )
        self._identities[model, target, fraction] = identity
        return identity

    def attack(self, name: str) -> AttackSpec:
        """The attack of the configuration with this name."""
        return next(attack for attack in self.config.attacks if attack.name == name)

    def attack_record(
        self, model: str, target: str, fraction: SplitKey, attack: AttackSpec
    ) -> Path:
        """Folder of the record of a start model's or retain model's results under an attack."""
        identity = self.evaluation_identity(model, target, fraction)
        return self.record(self.models(model).attack_id(identity, attack, self.config.training))

    def evaluation(
        self,
        model: str,
        target: Literal["full", "retain"],
        fraction: SplitKey,
        attack: AttackSpec | None = None,
        variant: str = "",
    ) -> Evaluation | None:
        """Evaluation of the start model (`full`) or the retain model, under an attack or without.

        None where there is no such model, or none yet. Raises: RecordError where the plain
        evaluation of the retain model is missing.
        """
        if target == "retain" and "retain" not in self.config.references:
            return None
        name = "full" if target == "full" else split_name("retain", fraction)
        if attack is None:
            record_folder = self.evaluation_record(model, name, fraction)
        else:
            record_folder = self.attack_record(model, name, fraction, attack)
        if not self.storage.fetch(record_folder) and (attack or target == "full"):
            return None
        # The same object for all runs: what is computed of it is computed once.
        key = f"{record_folder.name} {variant}"
        if key not in self._compared:
            stored = read_record(record_folder)
            if attack is None:
                self._compared[key] = stored.evaluations[0]
            elif (0, variant) in stored.attacked_evaluations:
                self._compared[key] = stored.attacked_evaluations[0, variant]
        return self._compared.get(key)

    def reference_records(self, model: str, fraction: SplitKey) -> tuple[Record, ...]:
        """Return the records of the start and retain model, plain and under attacks.

        Those that are not made yet are left out.
        """
        targets = ["full"]
        if "retain" in self.config.references:
            targets.append(split_name("retain", fraction))
        records: list[Record] = []
        for target in targets:
            folders = [self.evaluation_record(model, target, fraction)]
            for attack in self.config.attacks:
                folders.append(self.attack_record(model, target, fraction, attack))
            records += [read_record(folder) for folder in folders if folder.is_dir()]
        return tuple(records)

    def with_inputs(
        self, record: Record, rules_key: str, references: Iterable[Record] | None = None
    ) -> Record:
        """Return a record that says how its numbers were computed, see `finalize`.

        Args:
            record: A new one.
            rules_key: Key of the rules by which its numbers were computed.
            references: The start and retain models that it was compared with. Defaults to
                `reference_records`.
        """
        if references is None:
            references = self.reference_records(*record.panel)
        entry: dict[str, Any] = inputs_entry(rules_key, record, references)
        entry |= observed_by_entry(self.rules)
        return replace(record, provenance={**record.provenance, **entry})

    def fetch_models(self, model: str, *targets: str) -> None:
        """Copy from the storage the base and `targets` (`full`, retain models) that it has."""
        models = self.models(model)
        if models.is_tiny:
            self.storage.fetch(models.folder("base"))
        for target in targets:
            path = Path(models.target(target).place)
            if self.cache in path.parents:
                self.storage.fetch(path)

    def record(self, key: str) -> Path:
        """Folder of the record with the id `key`."""
        return self.folder / "records" / key

    def evaluation_record(self, model: str, target: str, fraction: SplitKey) -> Path:
        """Folder of the record of a start model's (`full`) or retain model's evaluation."""
        return self.record(self.evaluation_id(model, target, fraction))


_loaded: list[Workspace] = []


def workspace(config: SweepConfig, folder: Path) -> Workspace:
    """Workspace of a configuration; the next run in the same process finds it loaded."""
    hide_row_texts(hidden=not config.keep_texts)
    for space in _loaded:
        if (space.config, space.folder) == (config, folder):
            return space
    space = Workspace(config, folder)
    _loaded[:] = [space, *_loaded[:1]]
    return space


def clear_workspaces() -> None:
    """Forget what is loaded: content on the disk may have changed."""
    _loaded.clear()
