"""Places of a sweep's models: published ones, and folders of those that are prepared here."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
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
from unlearnbench.models.encoding import TEMPLATES, Encoder, Template
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
from unlearnbench.models.tiny import BOS, EOS, PAD
from unlearnbench.models.whole_model import load_tokenizer, read_config

TINY_TOKENS = (BOS, EOS, PAD)
"""Control tokens of a model that is built here."""


@dataclass(frozen=True)
class ModelSources:
    """Base, start and retain models of one `ModelSettings` on one benchmark, and their rows.

    The folder of a prepared model is named by the hash of all that it is made of: settings, rows,
    and the weights that it starts from.
    """

    settings: ModelSettings
    benchmark: Dataset
    cache: Path

    @property
    def is_tiny(self) -> bool:
        """True if the base is built here."""
        return self.settings.base == "tiny"

    @cached_property
    def _base_hash(self) -> str:
        settings = self.settings
        ingredients = [
            identity_of(settings.architecture, Id.BASE),
            identity_of(settings.preparation, Id.BASE),
            settings.template,
            list(self.text()),
            _content(self.base_rows()),
        ]
        return content_hash(ingredients)

    def base(self) -> Source:
        """Model that fine-tuning starts from, and that the tokenizer is of.

        Without a base it is the start model, see `ModelSettings.origin`.
        """
        if self.is_tiny:
            return Source(str(self.folder("base")))
        return source_of(self.settings)

    def folder(self, name: str) -> Path:
        """Folder of the tiny base model (`base`), or of one fine-tuned on `full` or `retain90`."""
        if name not in self._folders:
            self._folders[name] = self._folder(name)
        return self._folders[name]

    @cached_property
    def _folders(self) -> dict[str, Path]:
        """By the name of a model. To hash the rows of a large table takes a second."""
        return {}

    def _folder(self, name: str) -> Path:
        if name == "base":
            return self.cache / "models" / f"base-{self._base_hash}"
        base = self.folder("base").name if self.is_tiny else self.base().identity()
        is_folder = not self.is_tiny and self.base().folder is not None
        content = {"base": base} if is_folder else {}
        settings = identity_of(self.settings, Id.PREPARED, content=content)
        rows = _content(self.tuning_rows(name))
        # Rows are ready for JSON as they are, and there may be many.
        ingredients: list[Any] = [name, base, json_ready(settings), rows]
        if self.template_digest:
            ingredients.append(self.template_digest)
        if self.turn_end:
            ingredients.append(json_ready(self.turn_end))
        ingredients += corrections_under(self.corrections, ())
        return self.cache / "models" / f"{name}-{plain_hash(ingredients)}"

    @cached_property
    def corrections(self) -> frozenset[str]:
        """Corrected faults of the architecture, see `models/corrections.py`."""
        return corrections_of(self.settings)

    @cached_property
    def template_digest(self) -> str:
        """The digest of the rendered chat template, see `loading.template_digest`."""
        return template_digest(
            self.settings,
            with_examples=self.benchmark.uses_turns,
            tokenizer=lambda: self._tokenizer,
        )

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
        """The template around questions and answers. Raises: ModelError."""
        if self.is_tiny and self.settings.template == "auto":
            return TEMPLATES["plain"]
        return self._template

    def encoder(self, max_length: int) -> Encoder:
        """Return an encoder with the tokenizer of a model that is not built here.

        Raises:
            ModelError: If there is no tokenizer to read.
        """
        return Encoder(self._tokenizer, self.template, max_length)

    @cached_property
    def _trimmed(self) -> list[str]:
        """Entry of ids if the chat template removes blanks of answers, which were kept earlier."""
        return (
            ["trimmed"]
            if self._template.trims_answers and any(map(_has_blanks, self._rows()))
            else []
        )

    def _rows(self) -> Iterator[Question]:
        """The rows that models are trained and evaluated on."""
        yield from self.benchmark.full
        for split in self.benchmark.splits.values():
            yield from (*split.forget, *split.retain, *chain(*split.sets.values()))

    @cached_property
    def turn_end(self) -> list[str]:
        """What ends a turn in training, if it is not EOS alone: see `loading.turn_end_entry`."""
        if self.is_tiny:
            return []
        return [*turn_end_entry(self.settings, self._template), *self._trimmed]

    @cached_property
    def stops(self) -> frozenset[int]:
        """The ids at which the start model's `generation_config` stops."""
        return frozenset() if self.is_tiny else stop_ids(self._generation_config("full"))

    def _generation_config(self, target: str) -> Any:
        """The `generation_config` of a start or retain model, which a prepared one has of its base.

        None for a log.
        """
        given = self.published(target)
        if given is not None and is_log(given):
            return None
        source = self.base() if given is None else source_of(self.settings, given)
        if source.place not in self._generation_configs:
            self._generation_configs[source.place] = generation_config(source, self.settings)
        return self._generation_configs[source.place]

    @cached_property
    def _generation_configs(self) -> dict[str, Any]:
        """By the place of a source."""
        return {}

    def generation(self, target: str, profile: Profile) -> list[Any]:
        """What an evaluation of a start or retain model scores and stops at, if not EOS alone.

        See `loading.generation_entry`.
        """
        if self.is_tiny:
            return []
        config = self._generation_config(target)
        follows = profile.follows_generate
        says_nothing = not stop_ids(config) and not logit_settings(config)
        is_by_eos = says_nothing and (config is None or not follows)
        if is_by_eos and self._template.turn_end is None:
            return self._trimmed  # without the tokenizer
        entry = generation_entry(self._template, self._tokenizer, config, follows_generate=follows)
        return [*entry, *self._trimmed]

    def check_answers(self) -> None:
        """Raise DataError if an answer consists of the tokenizer's control tokens alone.

        Reads the tokenizer only if there is an answer that looks so.
        """
        rows = [row for row in self._rows() if _looks_like_control(row)]
        if rows:
            tiny = ControlText(TINY_TOKENS) if self.is_tiny else None
            control = tiny or ControlText.of(self._tokenizer)
            for row in rows:
                control.check_answers(row)

    def turn_digest(self, profile: Profile) -> str:
        """Hash of how turns and answers of a run end; empty if by EOS alone."""
        entry = [self.turn_end, self.generation("full", profile)]
        return content_hash(entry) if any(entry) else ""

    @cached_property
    def start_config(self) -> Any:
        """The start model's configuration; None for one that is built here. Raises: ModelError."""
        given = self.published("full")
        if given is None and self.is_tiny:
            return None
        source = self.base() if given is None else source_of(self.settings, given)
        return read_config(source, self.settings)

    @property
    def has_dropout(self) -> bool:
        """Whether the start model's configuration sets dropout. Raises: ModelError."""
        config = self.start_config
        return config is not None and config_has_dropout(config)

    def published(self, name: str) -> str | None:
        """The checkpoint or log that is given for a model; None if it is prepared here."""
        settings = self.settings
        return settings.fine_tuned if name == "full" else settings.retain.get(name)

    def target(self, name: str) -> Source:
        """Start model (`full`), which has learned all rows, or a retain model (`retain90`)."""
        given = self.published(name)
        if given is None:
            return Source(str(self.folder(name)))
        return source_of(self.settings, given)

    def full(self) -> Source:
        """Start model."""
        return self.target("full")

    def evaluation_identity(
        self, target: str, fraction: SplitKey, data: str, settings: EvaluationSettings
    ) -> list[str | float]:
        """Return the list that the id of an evaluation of a start or retain model is the hash of.

        Args:
            target: `full` for the start model, or the retain model's name: `retain90`.
            fraction: The split.
            data: Hash of the rows of the split.
            settings: Rules of the evaluation.
        """
        source, model = self.target(target), self.settings
        prepared = self.cache in Path(source.place).parents  # now or later
        weights = Path(source.place).name if prepared else source.identity()
        # Its numbers are relative to the other of the two models, and its tokenizer is the base's.
        retain, contents = split_name("retain", fraction), local_contents(model)
        read = {
            "base": None if prepared or model.base is None else f"{model.base}@{model.revision}",
            "fine_tuned": model.fine_tuned,
            f"retain.{retain}": model.retain.get(retain),
        }
        if others := [*filter(None, (contents.get(key) or read[key] for key in read))]:
            weights = content_hash([weights, *others])
        profile = profile_of(settings)
        generation = self.generation(target, profile)
        is_corrected = not prepared and MASKS in self.corrections
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
            published=None if prepared else model,
            correction=MASKS if is_corrected else "",
        ).identity

    def attack_id(
        self, identity: list[str | float], attack: AttackSpec, settings: TrainingSettings
    ) -> str:
        """Id of the record of a start or retain model under an attack that trains by `settings`."""
        # All other corrections concern plain evaluations, too, and are in `identity`.
        is_corrected = EXPERTS in corrections_under(self.corrections, [attack])
        spec = AttackedReferenceSpec(
            training=settings,
            model=self.settings,
            turn_end=tuple(self.turn_end),
            corrections=(EXPERTS,) if is_corrected else (),
        )
        return spec.id_under(attack, identity)

    def base_rows(self) -> list[Question]:
        """Rows that the tiny base model is trained on: true facts and unrelated authors."""
        return [*self._facts(), *self.benchmark.pretraining]

    def tuning_rows(self, name: str) -> list[Question]:
        """Rows that the model called `name` is fine-tuned on."""
        retain = {split.retain_name: split.retain for split in self.benchmark.splits.values()}
        rows = self.benchmark.full if name == "full" else retain[name]
        return [*rows, *(self._facts() if self.settings.preparation.rehearse_facts else [])]

    def text(self) -> Iterator[str]:
        """Text that the tiny model's tokenizer is made from."""
        for row in [*self.benchmark.full, *self.benchmark.pretraining, *self._facts()]:
            if row.format == "text":
                yield row.question + row.answer
            else:
                yield f"Question: {row.question}\nAnswer: {row.answer}"
        for refusal in self.benchmark.refusals:
            yield f" {refusal}"

    def _facts(self) -> list[Question]:
        return [*self.benchmark.facts]


def reference_ids(
    config: SweepConfig, models: Iterable[ModelSources], data: Mapping[SplitKey, str]
) -> Iterator[str]:
    """Yield the ids of the records of all start and retain models; `data`: hashes of the rows."""
    for item, fraction in itertools.product(models, data):
        targets = {"start": "full", "retain": split_name("retain", fraction)}
        for target in (targets[name] for name in targets if name in config.references):
            identity = item.evaluation_identity(target, fraction, data[fraction], config.evaluation)
            yield content_hash(identity)
            yield from (item.attack_id(identity, a, config.training) for a in config.attacks)


_TAGS = re.compile(r"\s*([<\[][^<>\[\]]+[>\]]\s*)+")
"""A text that consists of words in brackets, such as `<end_of_turn>` or `[/INST] </s>`."""


def _has_blanks(row: Question) -> bool:
    """Whether an answer that stands in a chat template begins or ends with white space."""
    is_free = row.format == "text" or row.answer_index is not None
    return not is_free and any(answer != answer.strip() for answer in row.scored_answers)


def _looks_like_control(row: Question) -> bool:
    """Whether an answer consists of texts in brackets, as control tokens do."""
    return any(_TAGS.fullmatch(answer) for answer in row.scored_answers)


_EVALUATED = {"max_new_tokens", "max_length", "stops", "max_answer_tokens", "labels"}
"""Settings of a row that only evaluations read."""


def _content(rows: Sequence[Question]) -> list[tuple[object, ...]]:
    def own(row: Question) -> dict[str, object]:
        settings = row.prompt_settings.items()
        return {key: value for key, value in settings if key not in _EVALUATED}

    return [
        (row.question, row.answer, *([options] if (options := own(row)) else [])) for row in rows
    ]
