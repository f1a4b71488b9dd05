"""Places of a sweep's models: given checkpoints and logs, and folders of models prepared here.

A start or retain model is *given* if the configuration names a checkpoint or a log for it. All
others are prepared here, each in a folder of the cache. The folder is named by the hash of
everything that the model is made of: settings, rows, and the weights that it starts from.
Therefore a model is prepared once, and again if one of these changes.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from unlearnbench.api.benchmark import Dataset, Question, SplitKey, split_name
from unlearnbench.api.identity import Id, identity_of
from unlearnbench.api.profile import Profile
from unlearnbench.base.hashing import content_hash, json_ready, plain_hash
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.reference_spec import AttackedReferenceSpec, ReferenceSpec
from unlearnbench.config.schema import EvaluationSettings, ModelSettings, SweepConfig
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.models.control_text import ControlText
from unlearnbench.models.corrections import EXPERTS, MASKS, corrections_of, corrections_under
from unlearnbench.models.dropout import config_has_dropout
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.generation_settings import logit_settings, stop_ids
from unlearnbench.models.identity_entries import (
    generation_config,
    generation_entry,
    template_digest,
    template_of,
    turn_end_entry,
)
from unlearnbench.models.named_models import is_log, local_contents, source_of
from unlearnbench.models.source import Source
from unlearnbench.models.templates import TEMPLATES, Template
from unlearnbench.models.tiny import BOS, EOS, PAD
from unlearnbench.models.whole_model import load_tokenizer, read_config

PREPARED_FILE = "prepared.json"
"""File of a prepared model, which is written with its weights and says how long they took."""
TINY_TOKENS = (BOS, EOS, PAD)
"""Control tokens of a model that is built here."""
_EVALUATED = {"max_new_tokens", "max_length", "stops", "max_answer_tokens", "labels"}
"""Settings of a row that only evaluations read."""
_TAGS = re.compile(r"\s*([<\[][^<>\[\]]+[>\]]\s*)+")
"""A text that consists of words in brackets, such as `<end_of_turn>` or `[/INST] </s>`."""


def is_prepared(folder: Path) -> bool:
    """Whether a folder contains a complete prepared model."""
    return (folder / PREPARED_FILE).is_file()


class ModelSources:
    """Base, start and retain models of one `ModelSettings` on one benchmark, and their rows.

    A start or retain model is known by its *target*: `full` for the start model, which has learned
    all rows, or the retain model's name, such as `retain90`.
    """

    def __init__(self, settings: ModelSettings, benchmark: Dataset, cache: Path) -> None:
        """Read nothing yet.

        Args:
            settings: The settings of the models.
            benchmark: The rows.
            cache: The folder of prepared models.
        """
        self.settings = settings
        self.benchmark = benchmark
        self.cache = cache
        self._folder_of_name: dict[str, Path] = {}
        self._generation_config_of_place: dict[str, Any] = {}

    # Places

    @property
    def is_tiny(self) -> bool:
        """Whether the base is built here."""
        return self.settings.base == "tiny"

    def base(self) -> Source:
        """Return the model that fine-tuning starts from, whose tokenizer all models use.

        If the settings name no base, it is the start model, see `ModelSettings.origin`.
        """
        if self.is_tiny:
            return Source(str(self.folder("base")))
        return source_of(self.settings)

    def published(self, target: str) -> str | None:
        """Return the checkpoint or log that is given for a model. None: it is prepared here."""
        if target == "full":
            return self.settings.fine_tuned
        return self.settings.retain.get(target)

    def target(self, target: str) -> Source:
        """Return the start model or a retain model."""
        given = self.published(target)
        if given is None:
            return Source(str(self.folder(target)))
        return source_of(self.settings, given)

    def full(self) -> Source:
        """Return the start model."""
        return self.target("full")

    def folder(self, name: str) -> Path:
        """Return the folder of a model that is prepared here, now or later.

        Args:
            name: `base` for the tiny base model, or a target.
        """
        # To hash the rows of a large table takes a second.
        if name not in self._folder_of_name:
            model_hash = self._base_hash() if name == "base" else self._tuned_hash(name)
            self._folder_of_name[name] = self.cache / "models" / f"{name}-{model_hash}"
        return self._folder_of_name[name]

    def _base_hash(self) -> str:
        """Return the hash of everything that the tiny base model is made of."""
        ingredients = [
            identity_of(self.settings.architecture, Id.BASE),
            identity_of(self.settings.preparation, Id.BASE),
            self.settings.template,
            list(self.text()),
            _trained_content(self.base_rows()),
        ]
        return content_hash(ingredients)

    def _tuned_hash(self, target: str) -> str:
        """Return the hash of everything that a fine-tuned model is made of."""
        content: dict[str, str] = {}
        if self.is_tiny:
            base = self.folder("base").name
        else:
            base = self.base().identity()
            if self.base().folder is not None:
                content["base"] = base
        settings = identity_of(self.settings, Id.PREPARED, content=content)
        rows = _trained_content(self.tuning_rows(target))
        # Only the settings are made ready for JSON. Rows are so as they are, and may be many.
        ingredients: list[Any] = [target, base, json_ready(settings), rows]
        # Entries of later versions stand only in ids that they concern, so that all others stay.
        if self.template_digest:
            ingredients.append(self.template_digest)
        if self.turn_end:
            ingredients.append(json_ready(self.turn_end))
        ingredients += corrections_under(self.corrections, ())
        return plain_hash(ingredients)

    # Rows

    def base_rows(self) -> list[Question]:
        """Return the rows that the tiny base model is trained on: true facts, unrelated authors."""
        return [*self.benchmark.facts, *self.benchmark.pretraining]

    def tuning_rows(self, name: str) -> list[Question]:
        """Return the rows that a start or retain model is fine-tuned on.

        Args:
            name: The model's target.
        """
        if name == "full":
            rows = self.benchmark.full
        else:
            rows_of_target = {
                split.retain_name: split.retain for split in self.benchmark.splits.values()
            }
            rows = rows_of_target[name]
        rehearsed = self.benchmark.facts if self.settings.preparation.rehearse_facts else ()
        return [*rows, *rehearsed]

    def text(self) -> Iterator[str]:
        """Yield the text that the tiny model's tokenizer is made from."""
        for row in [*self.benchmark.full, *self.benchmark.pretraining, *self.benchmark.facts]:
            if row.format == "text":
                yield row.question + row.answer
            else:
                yield f"Question: {row.question}\nAnswer: {row.answer}"
        for refusal in self.benchmark.refusals:
            yield f" {refusal}"

    def _rows(self) -> Iterator[Question]:
        """Yield the rows that models are trained and evaluated on. Some come several times."""
        yield from self.benchmark.full
        for split in self.benchmark.splits.values():
            yield from split.forget
            yield from split.retain
            for rows in split.sets.values():
                yield from rows

    def check_answers(self) -> None:
        """Raise DataError if an answer consists of the tokenizer's control tokens alone.

        The tokenizer is read only if an answer looks like it.
        """
        suspects = [row for row in self._rows() if _looks_like_control(row)]
        if not suspects:
            return
        control = ControlText(TINY_TOKENS) if self.is_tiny else ControlText.of(self._tokenizer)
        for row in suspects:
            control.check_answers(row)

    # Tokenizer and template

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self.base(), self.settings)

    @cached_property
    def _template(self) -> Template:
        """The template of a model that is not built here."""
        if self.settings.template in TEMPLATES:
            return TEMPLATES[self.settings.template]
        return template_of(self.settings, self._tokenizer)

    @property
    def template(self) -> Template:
        """The template around questions and answers.

        Raises:
            ModelError: The model's chat template cannot be used.
        """
        if self.is_tiny and self.settings.template == "auto":
            return TEMPLATES["plain"]
        return self._template

    @cached_property
    def template_digest(self) -> str:
        """The digest of the rendered chat template, see `identity_entries.template_digest`."""
        return template_digest(
            self.settings,
            with_examples=self.benchmark.uses_turns,
            tokenizer=lambda: self._tokenizer,
        )

    def encoder(self, max_length: int) -> Encoder:
        """Return an encoder with the tokenizer of a model that is not built here.

        Raises:
            ModelError: There is no tokenizer to read.
        """
        return Encoder(self._tokenizer, self.template, max_length)

    # How turns and answers end

    @cached_property
    def _trimmed(self) -> list[str]:
        """Entry of ids if the chat template removes blanks around answers.

        Earlier versions kept these blanks, so their numbers differ.
        """
        if self._template.trims_answers and any(map(_has_blanks, self._rows())):
            return ["trimmed"]
        return []

    @cached_property
    def turn_end(self) -> list[str]:
        """What ends a turn in training, as `identity_entries.turn_end_entry` has it.

        Empty if only EOS does.
        """
        if self.is_tiny:
            return []
        return [*turn_end_entry(self.settings, self._template), *self._trimmed]

    @cached_property
    def stops(self) -> frozenset[int]:
        """The ids at which the start model's `generation_config` stops."""
        if self.is_tiny:
            return frozenset()
        return stop_ids(self._generation_config("full"))

    def _generation_config(self, target: str) -> Any:
        """Return the `generation_config` of a start or retain model, or None for a log.

        A prepared model has that of its base.
        """
        given = self.published(target)
        if given is not None and is_log(given):
            return None
        source = self.base() if given is None else source_of(self.settings, given)
        known = self._generation_config_of_place
        if source.place not in known:
            known[source.place] = generation_config(source, self.settings)
        return known[source.place]

    def generation(self, target: str, profile: Profile) -> list[Any]:
        """Return which ends of answers an evaluation scores, and where it stops answers.

        Args:
            target: The model.
            profile: The rules of the evaluation.

        Returns:
            The list as `identity_entries.generation_entry` has it. It is empty if only EOS ends
            answers.
        """
        if self.is_tiny:
            return []
        config = self._generation_config(target)
        follows_config = profile.follows_generate and config is not None
        config_is_silent = not stop_ids(config) and not logit_settings(config)
        if config_is_silent and not follows_config and self._template.turn_end is None:
            # The entry would be empty. To say so takes no tokenizer.
            return self._trimmed
        entry = generation_entry(
            self._template,
            self._tokenizer,
            config,
            follows_generate=profile.follows_generate,
        )
        return [*entry, *self._trimmed]

    def turn_digest(self, profile: Profile) -> str:
        """Return the hash of how turns and answers of a run end. Empty if only EOS ends them."""
        entry = [self.turn_end, self.generation("full", profile)]
        return content_hash(entry) if any(entry) else ""

    # Configuration

    @cached_property
    def corrections(self) -> frozenset[str]:
        """Corrected faults of the architecture, see `models/corrections.py`."""
        return corrections_of(self.settings)

    @cached_property
    def start_config(self) -> Any:
        """The start model's configuration. None: the model is built here.

        Raises:
            ModelError: It cannot be read.
        """
        given = self.published("full")
        if given is None and self.is_tiny:
            return None
        source = self.base() if given is None else source_of(self.settings, given)
        return read_config(source, self.settings)

    @property
    def has_dropout(self) -> bool:
        """Whether the start model's configuration sets dropout.

        Raises:
            ModelError: The configuration cannot be read.
        """
        config = self.start_config
        return config is not None and config_has_dropout(config)

    # Ids of evaluations

    def evaluation_identity(
        self, target: str, fraction: SplitKey, data: str, settings: EvaluationSettings
    ) -> list[str | float]:
        """Return the list whose hash is the id of an evaluation of a start or retain model.

        The list has everything that the numbers of the evaluation depend on. An evaluation with the
        same id is not done again. `ReferenceSpec` says which entry is there when.

        Args:
            target: The model: `full`, or the name of a retain model.
            fraction: The split.
            data: Hash of the rows of the split.
            settings: Rules of the evaluation.

        Raises:
            ModelError: Tokenizer, chat template or generation_config.json cannot be read.
        """
        model = self.settings
        source = self.target(target)
        # True also before the preparation: the folder has its name before it has files.
        is_prepared = self.cache in Path(source.place).parents
        # The name of a prepared model's folder is a hash of all that the model was made from.
        weights = Path(source.place).name if is_prepared else source.identity()
        related = self._related_models(fraction, is_prepared=is_prepared)
        if related:
            weights = content_hash([weights, *related])
        profile = profile_of(settings)
        generation = self.generation(target, profile)
        # Evaluations of some architectures were wrong in earlier versions, and are done again under
        # another id. The folder's name of a prepared model changed with the correction already.
        is_corrected = not is_prepared and MASKS in self.corrections
        return ReferenceSpec(
            model=model.name,
            target=target,
            weights=weights,
            split=fraction,
            profile=profile.id,
            data=data,
            template_digest=self.template_digest,
            turns=content_hash(generation) if generation else "",
            evaluation=settings,
            published=None if is_prepared else model,
            correction=MASKS if is_corrected else "",
        ).identity

    def _related_models(self, split: SplitKey, *, is_prepared: bool) -> list[str]:
        """Return the given models that an evaluation depends on in addition to the evaluated one.

        Its numbers are relative to the start model or the retain model, whichever is not evaluated,
        and its tokenizer is the base's.

        Args:
            split: The split of the evaluation.
            is_prepared: Whether the evaluated model is prepared here. The name of its folder then
                has the identity of its base.

        Returns:
            The hash of each model's files, or the name of a hub's model.
        """
        model = self.settings
        retain = split_name("retain", split)
        place_of_key = {
            "base": None if is_prepared or model.base is None else f"{model.base}@{model.revision}",
            "fine_tuned": model.fine_tuned,
            f"retain.{retain}": model.retain.get(retain),
        }
        # A local base has an entry here even if the evaluated model is prepared.
        contents = local_contents(model)
        related = [contents.get(key) or place for key, place in place_of_key.items()]
        return [entry for entry in related if entry]

    def attack_id(
        self, identity: list[str | float], attack: AttackSpec, settings: TrainingSettings
    ) -> str:
        """Return the id of the record of a start or retain model under an attack.

        Args:
            identity: `evaluation_identity` of the evaluation without the attack.
            attack: The attack.
            settings: Settings by which the attack trains.
        """
        # All other corrections concern plain evaluations, too, and are in `identity`.
        is_corrected = EXPERTS in corrections_under(self.corrections, [attack])
        spec = AttackedReferenceSpec(
            training=settings,
            model=self.settings,
            turn_end=tuple(self.turn_end),
            corrections=(EXPERTS,) if is_corrected else (),
        )
        return spec.id_under(attack, identity)


def reference_ids(
    config: SweepConfig, models: Iterable[ModelSources], data: Mapping[SplitKey, str]
) -> Iterator[str]:
    """Yield the ids of the records of all start and retain models, plain and under attacks.

    Args:
        config: The sweep.
        models: Its models.
        data: Hash of the rows by split.
    """
    for sources, split in itertools.product(models, data):
        target_of_kind = {"start": "full", "retain": split_name("retain", split)}
        for kind, target in target_of_kind.items():
            if kind not in config.references:
                continue
            identity = sources.evaluation_identity(target, split, data[split], config.evaluation)
            yield content_hash(identity)
            for attack in config.attacks:
                yield sources.attack_id(identity, attack, config.training)


def _has_blanks(row: Question) -> bool:
    """Whether an answer that stands in a chat template begins or ends with white space."""
    is_without_template = row.format == "text" or row.answer_index is not None
    if is_without_template:
        return False
    return any(answer != answer.strip() for answer in row.scored_answers)


def _looks_like_control(row: Question) -> bool:
    """Whether an answer consists of texts in brackets, as control tokens do."""
    return any(_TAGS.fullmatch(answer) for answer in row.scored_answers)


def _trained_content(rows: Sequence[Question]) -> list[tuple[object, ...]]:
    """Return the parts of rows that training reads: question, answer, and settings if set."""
    content: list[tuple[object, ...]] = []
    for row in rows:
        settings = {
            name: value for name, value in row.prompt_settings.items() if name not in _EVALUATED
        }
        if settings:
            content.append((row.question, row.answer, settings))
        else:
            content.append((row.question, row.answer))
    return content
