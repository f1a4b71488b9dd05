"""A configuration's data, models and evaluators, loaded once in a process and then at hand."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from unlearnbench import hub
from unlearnbench.data.benchmark import Benchmark, split_name
from unlearnbench.data.draws import TrainingRows, training_rows
from unlearnbench.data.encoding import Encoder
from unlearnbench.data.loading import fingerprint, load_benchmark
from unlearnbench.data.tofu import hub_repository
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.profiles import Profile, profile_of
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.loading import load_tokenizer, pad_id, template_digest, template_of
from unlearnbench.plan import content_hash
from unlearnbench.preparation import Models
from unlearnbench.records import read_evaluation
from unlearnbench.settings import SweepConfig
from unlearnbench.storage import storage_of


class Workspace:
    """A configuration's data and models, loaded once in a process."""

    def __init__(self, config: SweepConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.cache = config.cache_folder
        self.storage = storage_of(config, folder)
        self.benchmark: Benchmark = load_benchmark(config.data, config.forget_fractions)
        self.profile: Profile = profile_of(config.evaluation)
        self._tokenizers: dict[str, Any] = {}
        self._evaluators: dict[tuple[str, float], Evaluator] = {}
        self._rows: dict[tuple[str, float, int, bool, int], TrainingRows] = {}
        self._anchors: dict[tuple[str, str, float], list[str | float]] = {}
        self._retain: dict[str, Evaluation] = {}

    def models(self, name: str) -> Models:
        """The models of the settings called `name`."""
        settings = next(m for m in self.config.models if m.name == name)
        parallel = self.config.resources_of(name).parallel
        mirror = self.storage if self.storage.url else None
        return Models(settings, self.benchmark, self.cache, parallel, mirror)

    def tokenizer(self, model: str) -> Any:
        """The tokenizer of `model`: its base's, since not every fine-tuned checkpoint has one."""
        if model not in self._tokenizers:
            models = self.models(model)
            models.make_sure("base")
            self._tokenizers[model] = load_tokenizer(models.base(), models.settings)
        return self._tokenizers[model]

    def encoder(self, model: str, max_length: int, *, ignore_label: bool = True) -> Encoder:
        """Text to rows, as `model` reads it."""
        tokenizer = self.tokenizer(model)
        template = template_of(self.models(model).settings, tokenizer)
        return Encoder(tokenizer, template, max_length, ignore_label=ignore_label)

    def rows(self, model: str, fraction: float, encoder: Encoder, skipped: int) -> TrainingRows:
        """The rows of a run as tokens of `model`, which `encoder` makes; see `training_rows`."""
        key = (model, fraction, encoder.max_length, encoder.ignore_label, skipped)
        if key not in self._rows:
            self._rows[key] = training_rows(self.benchmark, fraction, encoder, skipped)
        return self._rows[key]

    def evaluator(self, model: str, fraction: float) -> Evaluator:
        """The four sets at `fraction` as tokens of `model`."""
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
            )
        return self._evaluators[key]

    def commits(self, model: str, target: str) -> dict[str, str]:
        """The commits of the hub that the model called `target` was read at, with its data."""
        models = self.models(model)
        source = models.full() if target == "full" else models.retain(target)
        read = [one.repository for one in (models.base(), source)]
        data = hub_repository(self.config.data)
        return hub.commits_of([*read, data] if data else read)

    def anchor_id(self, model: str, target: str, fraction: float) -> str:
        """Identity of the evaluation of a full or retain model."""
        return content_hash(self.anchor_identity(model, target, fraction))

    def anchor_identity(self, model: str, target: str, fraction: float) -> list[str | float]:
        """What that is the hash of: model, target, weights, fraction, profile, data; the digest
        of a chat template and the precision where there are such."""
        key = (model, target, fraction)
        if key not in self._anchors:  # hashing the rows takes longer than some runs' set-up
            self._anchors[key] = self._anchor_identity(*key)
        return self._anchors[key]

    def _anchor_identity(self, model: str, target: str, fraction: float) -> list[str | float]:
        models = self.models(model)
        source = models.full() if target == "full" else models.retain(target)
        made = models.cache in Path(source.place).parents  # or is yet to be
        weights = Path(source.place).name if made else source.identity()
        data = fingerprint(self.benchmark, fraction)
        identity: list[str | float] = [model, target, weights, fraction, self.profile.id, data]
        if digest := template_digest(models.settings):
            identity.append(digest)
        if precision := self.config.evaluation.precision:
            identity.append(f"precision {precision}")
        return identity

    def retain_evaluation(self, model: str, fraction: float) -> Evaluation:
        """What Forget Quality compares with."""
        name = split_name("retain", 1 - fraction)
        key = self.anchor_id(model, name, fraction)
        if key not in self._retain:
            self.storage.fetch(self.record(key))
            self._retain[key] = read_evaluation(self.folder, key, 0)
        return self._retain[key]

    def full_evaluation(self, model: str, fraction: float) -> Evaluation | None:
        """The fine-tuned model's, where it is there already."""
        key = self.anchor_id(model, "full", fraction)
        return (
            read_evaluation(self.folder, key, 0) if self.storage.fetch(self.record(key)) else None
        )

    def fetch_models(self, model: str, *targets: str) -> None:
        """Copy what other machines have prepared: the base, and `full` or retain models."""
        models = self.models(model)
        if models.is_tiny:
            self.storage.fetch(models.base_folder())
        for target in targets:
            source = models.full() if target == "full" else models.retain(target)
            if self.cache in Path(source.place).parents:
                self.storage.fetch(Path(source.place))

    def record(self, key: str) -> Path:
        """Where the record called `key` lies once it is there."""
        return self.folder / "records" / key


@lru_cache(maxsize=2)
def workspace(config_json: str, folder: Path) -> Workspace:
    """The process's workspace for a configuration; a warm worker finds it loaded."""
    return Workspace(SweepConfig.model_validate_json(config_json), folder)
