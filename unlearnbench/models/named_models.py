"""The models that a configuration names: their sources, and what is wrong with these sources."""

import fnmatch
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from unlearnbench.base import hub
from unlearnbench.base.errors import ModelError
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.folder_kinds import has_other_weights
from unlearnbench.models.source import Source, UnreachableError, pickled_weights
from unlearnbench.models.whole_model import read_config

KeyPath = tuple[str, ...]
"""Path of a key below a model's own keys: `("base",)`, or `("retain", "retain90")`."""


def source_of(settings: ModelSettings, location: str | None = None) -> Source:
    """Return the source of one of the models that the settings name.

    Args:
        settings: The settings of a model in the configuration.
        location: The value of one of its keys. None: the model that preparation begins with.
    """
    if location is None:
        return Source.parse(settings.origin, settings.revision, settings.adapter_base)
    return Source.parse(location, None, settings.adapter_base)


def is_log(location: str) -> bool:
    """Whether a retain model is given by its evaluation: a log, or a file of a record."""
    return location.endswith((".json", ".json.gz", ".safetensors"))


def _named_locations(settings: ModelSettings) -> Iterator[tuple[KeyPath, str]]:
    """Yield the models that the settings name, each with its key, without models built here."""
    locations: dict[KeyPath, str | None] = {
        ("base",): settings.base,
        ("fine_tuned",): settings.fine_tuned,
    }
    for split, retain_location in settings.retain.items():
        locations["retain", split] = retain_location
    for key, location in locations.items():
        is_built_here = (key, location) == (("base",), "tiny")
        if location is not None and not is_built_here:
            yield key, location


def _weight_sources(settings: ModelSettings) -> Iterator[tuple[KeyPath, Source]]:
    """Yield the sources of weights: all models except retain models that are evaluation logs."""
    for key, location in _named_locations(settings):
        if key[0] != "retain" or not is_log(location):
            yield key, source_of(settings, None if key == ("base",) else location)


def local_sources(settings: ModelSettings) -> Iterator[Source]:
    """Yield the models with weights in a local folder, or with a local base below an adapter."""
    for _, source in _weight_sources(settings):
        if source.whole.folder is not None:
            yield source


def hub_sources(settings: ModelSettings) -> Iterator[tuple[KeyPath, Source]]:
    """Yield the models of a hub that the settings name, each with its key.

    If a hub's model is the base of an adapter, the base is yielded.
    """
    for key, source in _weight_sources(settings):
        whole = source.whole
        if whole.folder is None:
            yield key, whole


def local_contents(settings: ModelSettings) -> dict[str, str]:
    """Return hashes of the local folders and logs, by dotted key: `retain.retain90`."""
    contents: dict[str, str] = {}
    for key, location in _named_locations(settings):
        content = source_of(settings, location).content()
        if content:  # empty for a hub id
            contents[".".join(key)] = content
    return contents


def _reads_weights(key: KeyPath, settings: ModelSettings) -> bool:
    """Whether a sweep reads the weights of the model under a key.

    The base is not read if the start model and all retain models are given.
    """
    return key != ("base",) or settings.fine_tuned is None or not settings.retain


def source_errors(settings: ModelSettings) -> Iterator[tuple[KeyPath, ModelError]]:
    """Yield the errors in local folders and logs, each with its key.

    Only local files are checked, and nothing is loaded. A hub is contacted when a model is needed.
    """
    for key, location in _named_locations(settings):
        try:
            if key[0] == "retain" and is_log(location):
                if not Path(location).is_file():
                    raise ModelError(f"models.{settings.name}.{'.'.join(key)}: no log {location!r}")
                continue
            source = source_of(settings, location)
            source.check()
            whole_folder = source.whole.folder
            is_read = _reads_weights(key, settings)
            if is_read and whole_folder is not None and has_other_weights(whole_folder):
                raise pickled_weights(source)
            if location == settings.origin:
                source.check_tokenizer()
        except ModelError as error:
            yield key, error
    names_adapter = any(Source(place).is_adapter for _, place in _named_locations(settings))
    if settings.adapter_base is not None and not names_adapter:
        yield (
            ("adapter_base",),
            ModelError(
                f"models.{settings.name}.adapter_base: none of base, fine_tuned and retain is the "
                "folder of an adapter, so it has no effect; leave it out"
            ),
        )


def hub_errors(settings: ModelSettings) -> Iterator[tuple[KeyPath, ModelError]]:
    """Yield the errors in a hub's models, each with its key.

    Configuration and tokenizer are downloaded, but no weights. Models of a hub that does not
    answer are skipped.
    """
    for key, source in hub_sources(settings):
        if not hub.commits_of([source.repository]):
            continue  # the hub does not answer
        try:
            with suppress(UnreachableError):
                read_config(source, settings)
                names = hub.root_files(source.repository)
                if not names or not _reads_weights(key, settings):
                    continue
                if not fnmatch.filter(names, hub.WEIGHTS[0]):
                    raise pickled_weights(source)
        except ModelError as error:
            yield key, error
