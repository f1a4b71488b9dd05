"""What the runs of a configuration share in a process: data, models, tokenizers and evaluators.

Each of them is loaded when it is first asked for, and stays in memory for the next run.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.api.benchmark import Dataset, SplitKey
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.profile import Profile
from unlearnbench.base import hub
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
from unlearnbench.results.records import Record
from unlearnbench.results.remote_copies import storage_of
from unlearnbench.results.rules import RecordRules, observed_by_entry, record_rules
from unlearnbench.runs.baselines import Baselines, ComparedWith
from unlearnbench.runs.model_sources import ModelSources
from unlearnbench.runs.prepared_models import ModelPreparer
from unlearnbench.training.fine_tuning import FineTuner


class _RowsKey(NamedTuple):
    """Everything that the tokens of training rows depend on."""

    model: str
    split: SplitKey
    max_length: int
    ignore_label: bool
    skipped: int


class Workspace:
    """Data, models and evaluators of one configuration."""

    def __init__(self, config: SweepConfig, folder: Path) -> None:
        """Load the rows.

        Args:
            config: The configuration.
            folder: The sweep's folder, which has its records.
        """
        self.config = config
        self.folder = folder
        self.cache = config.cache_folder
        self.storage = storage_of(config, folder)
        self.benchmark: Dataset = load_benchmark(config.data, config.split_keys)
        self.profile: Profile = profile_of(config.evaluation)
        self.headline = config.headline
        self._models = {
            settings.name: ModelSources(settings, self.benchmark, self.cache)
            for settings in config.models
        }
        self.baselines = Baselines(config, folder, self.benchmark, self._models, self.storage)
        self._tokenizers: dict[str, Any] = {}
        self._evaluators: dict[tuple[str, SplitKey], Evaluator] = {}
        self._rows: dict[_RowsKey, TrainingRows] = {}
        self._tuners: dict[str, FineTuner] = {}
        self._fingerprints: dict[SplitKey, str] = {}
        self._loaded_start: tuple[str, Any] | None = None
        """The start model that is in memory, and the name of its settings."""

    # What numbers are computed by

    @cached_property
    def rules(self) -> RecordRules:
        """The rules by which the numbers of records are computed."""
        return record_rules(
            self.config.data.model_dump(mode="json"),
            self.profile.id,
            self.config.evaluation.metrics,
            has_retain=self.baselines.has_retain,
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

    def summary(self, evaluation: Evaluation, compared: ComparedWith) -> dict[str, float | None]:
        """Compute all metrics of an evaluation, see `summarize`."""
        return summarize(
            evaluation,
            compared.retain,
            self.profile,
            compared.start,
            self.config.data,
            self.config.evaluation.metrics,
            self.config.references,
        )

    def kept(self, evaluation: Evaluation, split: SplitKey) -> Evaluation:
        """Return an evaluation as it is stored: without texts if `keep_texts` is false."""
        if self.config.keep_texts:
            return evaluation
        if split not in self._fingerprints:
            self._fingerprints[split] = fingerprint(self.benchmark, split)
        return without_texts(evaluation, self.metrics.measures, self._fingerprints[split])

    def attack(self, name: str) -> AttackSpec:
        """Return the attack of the configuration with this name."""
        return next(attack for attack in self.config.attacks if attack.name == name)

    # Models, tokenizers and rows

    def models(self, name: str) -> ModelSources:
        """Return the base, start and retain models of the settings called `name`."""
        return self._models[name]

    def preparer(self, name: str) -> ModelPreparer:
        """Return what prepares the models of the settings called `name`."""
        parallel = self.config.resources_of(name).parallel
        return ModelPreparer(self.models(name), parallel, self.storage)

    def fetch_models(self, model: str, *targets: str) -> None:
        """Copy models from the storage, if it has them.

        Args:
            model: Name of the models' settings. Their packaged base is always copied.
            targets: Start and retain models, such as `full` and `retain90`.
        """
        models = self.models(model)
        if models.is_tiny:
            self.storage.fetch(models.folder("base"))
        for target in targets:
            path = Path(models.target(target).place)
            if self.cache in path.parents:
                self.storage.fetch(path)

    def commits(self, model: str, target: str) -> dict[str, str]:
        """Return the hub's commits of what is read: data, base, model `target`, metrics' models."""
        models = self.models(model)
        sources = (models.base(), models.target(target))
        repositories = [source.whole.repository for source in sources]
        repositories += self.config.data.repositories.values()
        repositories += self.metrics.repositories.values()
        return hub.commits_of(repositories)

    def tokenizer(self, model: str) -> Any:
        """Return the tokenizer of a model.

        It is the tokenizer of the base, because not every fine-tuned checkpoint has one.
        """
        if model not in self._tokenizers:
            self.preparer(model).ensure_prepared("base")
            models = self.models(model)
            self._tokenizers[model] = load_tokenizer(models.base(), models.settings)
        return self._tokenizers[model]

    def encoder(self, model: str, max_length: int, *, ignore_label: bool = True) -> Encoder:
        """Return the encoder of texts into rows of a model's tokens."""
        tokenizer = self.tokenizer(model)
        models = self.models(model)
        return Encoder(
            tokenizer,
            template_of(models.settings, tokenizer),
            max_length,
            ignore_label=ignore_label,
            further_stops=models.stops,
            eos_as_padding=models.settings.eos_as_padding,
        )

    def rows(self, model: str, split: SplitKey, encoder: Encoder, skipped: int) -> TrainingRows:
        """Return the rows of a run as tokens.

        Args:
            model: Name of the model's settings.
            split: The split of the run.
            encoder: The encoder, which is a `Workspace.encoder` of this model.
            skipped: Number of first answer tokens without a loss, see `training_rows`.
        """
        key = _RowsKey(model, split, encoder.max_length, encoder.ignore_label, skipped)
        if key not in self._rows:
            self._rows[key] = training_rows(self.benchmark, split, encoder, skipped)
        return self._rows[key]

    # Evaluation and attacks

    def evaluator(self, model: str, split: SplitKey) -> Evaluator:
        """Return the evaluator of a model on all evaluation sets of a split."""
        key = (model, split)
        if key not in self._evaluators:
            encoder = self.encoder(model, self.profile.max_length)
            self._evaluators[key] = Evaluator(
                evaluation_sets(self.benchmark, split, self.profile),
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
        """Return how many tokens a model can read; None if the profile sets its own length."""
        if not self.profile.reads_whole_context:
            return None
        self.preparer(model).ensure_prepared("base")
        models = self.models(model)
        return context_length(read_config(models.base(), models.settings))

    def with_start_losses(
        self, model: str, split: SplitKey, evaluation: Evaluation, start: Any = None
    ) -> Evaluation:
        """Add the losses of an evaluation's answers under the start model, if a metric reads them.

        Collective.

        Args:
            model: Name of the model's settings.
            split: The split of the evaluation.
            evaluation: The evaluation.
            start: The start model, if the caller has loaded it. None: it is loaded here if it is
                needed, and stays in memory.
        """
        if "start_loss" not in self.metrics.extra:
            return evaluation
        if start is None:
            start = self._start_model(model)
        return self.evaluator(model, split).with_start_losses(evaluation, start)

    def _start_model(self, model: str) -> Any:
        """Return a start model, which stays in memory until the one of another model is needed."""
        if self._loaded_start is None or self._loaded_start[0] != model:
            self._loaded_start = None  # its memory must be free before the next one is loaded
            self.preparer(model).ensure_prepared("full")
            models = self.models(model)
            self._loaded_start = model, load_model(models.full(), models.settings)
        return self._loaded_start[1]

    def fine_tuner(self, model: str) -> FineTuner:
        """Return what fine-tunes a model in attacks, with precision and length of the training."""
        if model not in self._tuners:
            training = self.config.training
            encoder = self.encoder(model, training.max_length)
            pad = pad_id(encoder.tokenizer)
            self._tuners[model] = FineTuner(
                encoder, pad, training.precision, training.micro_batch_size
            )
        return self._tuners[model]

    # Records

    def record(self, key: str) -> Path:
        """Return the folder of the record with this id."""
        return self.folder / "records" / key

    def with_inputs(
        self, record: Record, rules_key: str, references: Iterable[Record] | None = None
    ) -> Record:
        """Return a record that says how its numbers were computed, see `finalize`.

        Args:
            record: A new record.
            rules_key: Key of the rules by which its numbers were computed.
            references: Records of the start and retain models that it was compared with. Defaults
                to all that the baselines of its model and split have.
        """
        if references is None:
            references = self.baselines.records(*record.panel)
        entry: dict[str, Any] = inputs_entry(rules_key, record, references)
        entry |= observed_by_entry(self.rules)
        return replace(record, provenance={**record.provenance, **entry})


_MOST_LOADED = 2
"""Workspaces that stay in memory: the current one, and the one before it."""
_loaded: list[Workspace] = []


def workspace(config: SweepConfig, folder: Path) -> Workspace:
    """Return the workspace of a configuration. The next run of the process finds it loaded."""
    hide_row_texts(hidden=not config.keep_texts)
    for space in _loaded:
        if (space.config, space.folder) == (config, folder):
            return space
    space = Workspace(config, folder)
    _loaded.insert(0, space)
    del _loaded[_MOST_LOADED:]
    return space


def clear_workspaces() -> None:
    """Forget all workspaces, because the files that they have read may have changed."""
    _loaded.clear()
