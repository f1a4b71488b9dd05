"""Places of a sweep's models: published ones, and folders of those that are prepared here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unlearnbench.api.benchmark import Dataset, Question
from unlearnbench.config.schema import ModelSettings
from unlearnbench.config.training_settings import MAX_LENGTH
from unlearnbench.files.canonical_json import content_hash
from unlearnbench.models.loading import Source, template_digest


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

    def base_folder(self) -> Path:
        """Folder of the tiny base model."""
        return self.cache / "models" / f"base-{self._base_hash}"

    @cached_property
    def _base_hash(self) -> str:
        settings = self.settings
        ingredients = [
            settings.architecture.model_dump(),
            _as_before(settings.preparation.model_dump(exclude={"epochs", "rehearse_facts"})),
            settings.template,
            list(self.text()),
            _content(self.base_rows()),
        ]
        return content_hash(ingredients)

    def base(self) -> Source:
        """Model that fine-tuning starts from."""
        if self.is_tiny:
            return Source(str(self.base_folder()))
        return Source.parse(self.settings.base, self.settings.revision)

    def tuned_folder(self, name: str) -> Path:
        """Folder of the model fine-tuned on `name` (`full`, `retain90`)."""
        base = self.base_folder().name if self.is_tiny else self.base().identity()
        settings = self.settings.model_dump(
            exclude={"name", "retain", "fine_tuned", "gradient_checkpointing", "resources"}
        )
        if not self.settings.template_args:  # as before there were any
            del settings["template_args"]
        settings["preparation"] = _as_before(settings["preparation"])
        ingredients = [name, base, settings, _content(self.tuning_rows(name))]
        if digest := self.template_digest():
            ingredients.append(digest)
        return self.cache / "models" / f"{name}-{content_hash(ingredients)}"

    def template_digest(self) -> str:
        """The digest of the rendered chat template, see `loading.template_digest`."""
        return template_digest(self.settings, with_examples=self.benchmark.uses_turns)

    def full(self) -> Source:
        """Start model: it has learned all rows."""
        if self.settings.fine_tuned is not None:
            return Source.parse(self.settings.fine_tuned)
        return Source(str(self.tuned_folder("full")))

    def retain(self, name: str) -> Source:
        """Retain model, which never saw the forget set; `name` as in `retain90`."""
        published = self.settings.retain.get(name)
        if published is not None:
            return Source.parse(published)
        return Source(str(self.tuned_folder(name)))

    def target(self, name: str) -> Source:
        """Start model (`full`) or a retain model."""
        return self.full() if name == "full" else self.retain(name)

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


def _as_before(preparation: dict[str, Any]) -> dict[str, Any]:
    """The settings without those that earlier versions did not have, at their defaults."""
    return {k: v for k, v in preparation.items() if (k, v) != ("max_length", MAX_LENGTH)}


def _content(rows: Sequence[Question]) -> list[tuple[object, ...]]:
    def own(row: Question) -> dict[str, object]:
        return {key: value for key, value in row.prompt_settings.items() if key != "max_new_tokens"}

    return [(row.question, row.answer, *([how] if (how := own(row)) else [])) for row in rows]
