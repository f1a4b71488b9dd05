"""What a model's files add to the identity of its runs: chat template, turn ends, and stops."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from unlearnbench.base import hub
from unlearnbench.base.errors import ModelError
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.chat_template import no_variables, resolve_template
from unlearnbench.models.generation_settings import LogitRules, stop_ids
from unlearnbench.models.named_models import source_of
from unlearnbench.models.source import Source
from unlearnbench.models.templates import TEMPLATES, Template
from unlearnbench.models.whole_model import load_tokenizer, read_config


def template_of(settings: ModelSettings, tokenizer: Any) -> Template:
    """Return the template for questions and answers that the settings name.

    Raises:
        ModelError: The model's chat template cannot be used. The message names the model.
    """
    try:
        return resolve_template(settings.template, tokenizer, settings.template_args)
    except ModelError as error:
        raise ModelError(f"models.{settings.name}: {error}") from None


def template_digest(
    settings: ModelSettings, *, with_examples: bool, tokenizer: Callable[[], Any] | None = None
) -> str:
    """Return the digest of the rendered chat template, or of a built-in one that `may_merge`.

    The digest of other templates is empty. The tokenizer is read unless the settings name a
    built-in template.

    Args:
        settings: The settings of the model.
        with_examples: Whether rows have examples before the question, see `Template.digest`.
        tokenizer: Returns the model's tokenizer. None: it is loaded.

    Raises:
        ModelError: The template cannot be used, or takes no variables although some are given.
    """
    is_built_in = settings.template not in ("auto", "chat") or settings.base == "tiny"
    if is_built_in:
        if settings.template_args:
            raise ModelError(f"models.{settings.name}: {no_variables(settings.template)}")
        built_in = TEMPLATES.get(settings.template)
        return built_in.digest() if built_in and built_in.may_merge else ""
    if tokenizer is None:
        template = template_of(settings, load_tokenizer(source_of(settings), settings))
    else:
        template = template_of(settings, tokenizer())
    try:
        digest = template.digest(with_examples=with_examples)
    except ModelError as error:
        raise ModelError(f"models.{settings.name}: {error}") from None
    return digest if template.name == "chat" else ""


def generation_config(source: Source, settings: ModelSettings) -> Any:
    """Return the `generation_config` that a model gets when it is loaded, or None.

    If the model has no file of its own for it, transformers makes it from the model's
    configuration. A hub is asked only if its commit is known, because a plan can be shown without
    a hub. The result is None if nothing can be read.
    """
    from transformers import GenerationConfig

    whole = source.whole
    if whole.folder is None and not hub.commits_of([whole.repository]):
        return None
    folder = source.files()
    if (folder / "generation_config.json").is_file():
        try:
            return GenerationConfig.from_pretrained(folder)
        except OSError:
            # The file is not JSON. Loading the model then takes its configuration, as below.
            pass
        except (TypeError, ValueError):
            return None  # loading the model reports the error
    with suppress(ModelError):  # loading the model reports the error
        return GenerationConfig.from_model_config(read_config(source, settings))
    return None


def turn_end_entry(settings: ModelSettings, template: Template) -> list[str]:
    """Return what ends a turn in training: text and token.

    The entry is empty if EOS ends a turn, because ids of earlier versions have no entry then.
    """
    end = template.turn_end
    return [] if end is None or settings.eos_as_padding else [end.text, end.token]


def generation_entry(
    template: Template, tokenizer: Any, generation: Any, *, follows_generate: bool
) -> list[Any]:
    """Return what an evaluation scores and stops at.

    The entry is empty if answers end with EOS only, because ids of earlier versions have no entry
    then.

    Args:
        template: The model's template.
        tokenizer: The model's tokenizer.
        generation: The model's `generation_config`, or None.
        follows_generate: See `Profile.follows_generate`.

    Raises:
        EvaluationError: The profile follows a setting of `generation_config` that is unsupported.
    """
    if tokenizer.eos_token_id is None:
        return []  # the encoder refuses it
    eos = int(tokenizer.eos_token_id)
    stops = stop_ids(generation)
    entry: list[Any] = []
    if follows_generate:
        if generation is not None and stops != frozenset({eos}):
            entry.append(["stops", sorted(stops)])
        if rules := LogitRules.of(generation):
            entry.append(["logits", dict(rules.settings)])
        return entry
    end = template.turn_end
    known = {eos}
    if end is not None:
        entry.append(["ends", end.text, end.token])
        if end.token:
            known.add(int(tokenizer.convert_tokens_to_ids(end.token)))
    if further := sorted(stops - known):
        entry.append(["stops", further])
    return entry
