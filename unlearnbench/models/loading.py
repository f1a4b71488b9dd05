"""Models and tokenizers from a hub or a folder, and LoRA adapters on them."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
import re
import shlex
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearnbench.api.benchmark import Question
from unlearnbench.base import hub
from unlearnbench.base.deferred_warnings import warn_once
from unlearnbench.base.errors import ModelError, UnlearnbenchError
from unlearnbench.base.hashing import content_hash, content_of_files, kept_hash
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.base.redaction import redact
from unlearnbench.base.row_texts import row_text
from unlearnbench.config.schema import LoRA, ModelSettings
from unlearnbench.models.encoding import (
    TEMPLATES,
    Row,
    Template,
    no_variables,
    resolve_template,
)
from unlearnbench.models.folder_kinds import has_other_weights, other_kind, prefixed_names
from unlearnbench.models.generation_settings import LogitRules, stop_ids
from unlearnbench.models.gguf import check_file, content_of, converted, gguf_file
from unlearnbench.models.lora_targets import ExpertStacks, linear_routers

_BUFFERS = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|\.attention\.(masked_)?bias)$")
"""Ends of names of position tables and causal masks in old checkpoints: constants that the model
computes, and names that no weight has."""
_NAMED = 5
"""Tensors named in a message, at most."""
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_BASE_KEYS = ("base_model_name_or_path", "revision")
"""Keys of an adapter's configuration that say where its base is, not what the adapter computes."""
_DEEPEST = 8
"""Adapters on top of each other, at most: one that names itself has no end."""
_LONGEST_REASON = 1000
"""Characters of a library's message that are quoted."""


def check_causal(location: str, config: Any) -> None:
    """Raise ModelError where the architecture of `config` attends in both directions, as BERT."""
    from transformers.models.auto import modeling_auto

    encoders = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if config.model_type in encoders and not getattr(config, "is_decoder", False):
        raise ModelError(
            f"{location}: a {config.model_type} model is an encoder, which predicts no next token; "
            "give a causal language model"
        )


def check_tensors(location: str, model: Any, result: Mapping[str, Any]) -> None:
    """Raise a ModelError that names the tensors in which weights and architecture differ."""
    unexpected = (name for name in result["unexpected_keys"] if not _BUFFERS.search(name))
    faults = [
        *(f"{name} is missing" for name in sorted(result["missing_keys"])),
        *(f"{name} is unexpected" for name in sorted(unexpected)),
        *(f"{name} is {[*a]} for {[*b]}" for name, a, b in sorted(result["mismatched_keys"])),
    ]
    if faults:
        listed = ", ".join(faults[:_NAMED]) + (", …" if len(faults) > _NAMED else "")
        raise ModelError(
            f"{location}: the weights are not those of a {type(model).__name__}: {listed}; copy or "
            "save the weights again, correct config.json, or give a causal language model if this "
            "is an encoder, a classifier or a bare backbone"
        )


class UnreachableError(ModelError):
    """A hub that cannot be reached for a model or tokenizer."""


@dataclass(frozen=True)
class Source:
    """The source of weights: a folder, a GGUF file, a packaged model, or a hub id.

    A folder may hold a LoRA adapter, which is a model together with the base that it names.
    """

    place: str
    revision: str | None = None
    adapter_base: str | None = None
    """The base of an adapter, in place of the one that its configuration names."""

    @classmethod
    def parse(
        cls, text: str, revision: str | None = None, adapter_base: str | None = None
    ) -> Source:
        """Parse a folder, or a hub id that may end in `@revision`.

        revision  default where the text names none
        """
        if "://" in text:
            raise ModelError(
                f"{redact(text)!r} is a URL; a model is a folder or a hub id: download it "
                "and give the folder"
            )
        location, at, part = text.rpartition("@")
        if not at or Path(text).exists():
            return cls(text, revision, adapter_base)
        if not location or not part:
            raise ModelError(f"{text!r}: expected a hub id, or id@revision with a commit or tag")
        return cls(location, part, adapter_base)

    @property
    def folder(self) -> Path | None:
        """The folder, where `place` is one, or a GGUF file, which is converted once."""
        if gguf_file(self.place) is not None:
            return converted(self.place)
        path = Path(self.place)
        return path if path.is_dir() else None

    @property
    def repository(self) -> hub.Repository:
        """The hub's repository, where `place` is not a folder."""
        return hub.Repository("model", self.place, self.revision)

    @property
    def is_adapter(self) -> bool:
        """Whether `place` is a folder with an adapter, not with a whole model."""
        path = Path(self.place)
        return (path / ADAPTER_CONFIG).is_file() and not (path / "config.json").is_file()

    @property
    def base(self) -> Source:
        """The model that an adapter is on top of, which may be an adapter itself.

        A relative folder in its configuration is looked up from the working directory, then from
        the adapter's folder. Raises: ModelError where the configuration names none.
        """
        if self.adapter_base is not None:
            return Source.parse(self.adapter_base)
        path = Path(self.place) / ADAPTER_CONFIG
        config = self._adapter_config()
        name = config.get("base_model_name_or_path")
        if not isinstance(name, str) or not name:
            raise ModelError(
                f"{path}: base_model_name_or_path is {name!r}; write the base model's folder or "
                f"hub id there, or name the base: {_NAME_BASE}"
            )
        beside = Path(self.place) / name
        is_beside = not Path(name).is_dir() and beside.is_dir()
        return Source(str(beside) if is_beside else name, config.get("revision"))

    def _adapter_config(self) -> dict[str, Any]:
        path = Path(self.place) / ADAPTER_CONFIG
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: not an adapter configuration of peft ({error!r})") from None
        if not isinstance(config, dict):
            raise ModelError(f"{path}: not an adapter configuration of peft: expected an object")
        return config

    @property
    def whole(self) -> Source:
        """The model without adapters: the base of an adapter, or this model itself."""
        source = self
        for _ in range(_DEEPEST):
            if not source.is_adapter:
                return source
            source = source.base
        raise ModelError(
            f"{self.place}: more than {_DEEPEST} adapters on top of each other, or one whose base "
            f"is itself; correct {ADAPTER_CONFIG}"
        )

    @property
    def tokenizer(self) -> Source:
        """Where the tokenizer is: with the model; of an adapter without one, with its base."""
        is_bare = self.is_adapter and not any(Path(self.place).glob("tokenizer*"))
        return self.base.tokenizer if is_bare else self

    @contextmanager
    def _of_base(self) -> Generator[None, None, None]:
        """Say in an error about an adapter's base where the base is named, and how to change it."""
        try:
            yield
        except ModelError as error:
            if self.adapter_base is None:
                names = f"its {ADAPTER_CONFIG} says (base_model_name_or_path)"
                fix = f"if the base is elsewhere, name it: {_NAME_BASE}"
            else:
                names = "--adapter-base or the key adapter_base says"
                fix = "correct it"
            raise type(error)(
                f"{self.place}: an adapter on {redact(self.base.place)!r}, as {names}: {error}; "
                f"{fix}"
            ) from error

    def files(self, *, weights: bool = False) -> Path:
        """The folder with the files of the whole model; a hub's are downloaded to its cache.

        weights   with the weights; config and tokenizer are always there

        Raises: UnreachableError where a hub cannot be reached, ModelError where it refuses.
        """
        if self.is_adapter:
            with self._of_base():
                return self.whole.files(weights=weights)
        if self.folder is not None:
            return self.folder
        self.check()
        patterns = (*hub.SMALL, *hub.WEIGHTS) if weights else hub.SMALL
        try:
            folder = hub.snapshot(self.repository, patterns)
        except hub.HubError as error:
            if error.answered:
                raise ModelError(f"{self.place}: {error}") from error
            raise UnreachableError(
                f"{self.place}: neither the hub nor its cache has the model's files ({error}); "
                "check the id or folder, and HF_HUB_OFFLINE where the hub may be used"
            ) from error
        if (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file():
            raise ModelError(
                f"{self.place}: the hub has a LoRA adapter there, which is read from a folder: "
                f"`hf download {self.place} --local-dir FOLDER`, then give FOLDER"
            )
        return folder

    def content(self) -> str:
        """Hash of a folder's weights, config and tokenizer, or of a log; empty for a hub's id.

        Of an adapter it covers the base, too, wherever that is.
        """
        files = self._hash(*hub.SMALL, *hub.WEIGHTS)
        if not self.is_adapter:
            return files
        config = self._adapter_config()
        computed = {key: value for key, value in config.items() if key not in _BASE_KEYS}
        return content_hash([files, computed, self.base.identity()])

    def identity(self) -> str:
        """Hash of the content, or of a hub's id and revision."""
        hub_id = f"{self.place}@{self.revision}".encode()
        return self.content() or hashlib.sha256(hub_id).hexdigest()[:16]

    def weights(self) -> str:
        """Hash of a folder's weights alone, which records have; else the identity."""
        weights = self._hash(*hub.WEIGHTS) or self.identity()
        return content_hash([weights, self.base.weights()]) if self.is_adapter else weights

    def _hash(self, *patterns: str) -> str:
        path = Path(self.place)
        if gguf_file(self.place) is not None:
            return content_of(self.place)
        if self.folder is not None:
            result = {p for pattern in patterns for p in path.glob(pattern) if p.is_file()}
            result.discard(path / "prepared.json")  # it has times
            if self.is_adapter:
                result.discard(path / ADAPTER_CONFIG)  # it has the place of the base
            return content_of_files(result)
        return kept_hash(path)[:16] if path.is_file() else ""

    def check(self) -> None:
        """Raise ModelError where `place` looks like a folder but holds no model or adapter.

        transformers would query the hub for a minute before its error.
        """
        check_file(self.place)
        if self.is_adapter:
            if not (Path(self.place) / ADAPTER_WEIGHTS).is_file():
                raise ModelError(
                    f"{self.place}: no {ADAPTER_WEIGHTS}; pickled adapters are not loaded, convert "
                    f'it first: (cd {shlex.quote(self.place)} && python -c "import torch, '
                    "safetensors.torch as s; s.save_file(torch.load('adapter_model.bin', "
                    f"weights_only=True), '{ADAPTER_WEIGHTS}')\")"
                )
            with self._of_base():
                _ = self.whole  # fails where adapters are on top of each other without end
                self.base.check()
        elif self.folder is None:
            if self.place.startswith((".", "/", "~")) or self.place.count("/") > 1:
                raise ModelError(
                    f"no model folder {redact(self.place)!r}; give a folder or a hub id"
                )
        elif not (self.folder / "config.json").is_file():
            reason = other_kind(self.folder) or "this is not a model folder"
            raise ModelError(f"{self.place}: no config.json; {reason}")

    def check_tokenizer(self) -> None:
        """Raise ModelError where a folder holds no tokenizer."""
        folder = self.tokenizer.folder
        if folder is not None and not any(folder.glob("tokenizer*")):
            raise ModelError(
                f"{folder}: no tokenizer files (tokenizer.json …) with the model; save the "
                "model's tokenizer into that folder"
            )


_NAME_BASE = "--adapter-base on the command line, adapter_base in a configuration"

_Setting = tuple[str, ...]
"""The keys below a model's own."""


def _named(settings: ModelSettings) -> Iterator[tuple[_Setting, str]]:
    """The models that the settings name, each with its setting; not those that are built here."""
    places: dict[_Setting, str | None] = {
        ("base",): settings.base,
        ("fine_tuned",): settings.fine_tuned,
    }
    places |= {("retain", split): setting for split, setting in settings.retain.items()}
    for loc, location in places.items():
        if location is not None and (loc, location) != (("base",), "tiny"):
            yield loc, location


def source_of(settings: ModelSettings, location: str | None = None) -> Source:
    """The source of one of the models that the settings name; default: their origin."""
    if location is None:
        return Source.parse(settings.origin, settings.revision, settings.adapter_base)
    return Source.parse(location, None, settings.adapter_base)


def _sources(settings: ModelSettings) -> Iterator[tuple[_Setting, Source]]:
    """The sources of their weights: all but the retain models that are evaluation logs."""
    for loc, location in _named(settings):
        if loc[0] != "retain" or not is_log(location):
            yield loc, source_of(settings, None if loc == ("base",) else location)


def local_contents(settings: ModelSettings) -> dict[str, str]:
    """Hashes of the folders and logs that the settings name, by setting: `retain.retain90`."""
    result = {
        ".".join(loc): source_of(settings, location).content() for loc, location in _named(settings)
    }
    return {setting: content for setting, content in result.items() if content}


def source_errors(settings: ModelSettings) -> Iterator[tuple[_Setting, ModelError]]:
    """The folders and logs that cannot be used, each with its setting.

    Checks local files and loads nothing: hubs are contacted when a model is needed.
    """
    for loc, location in _named(settings):
        try:
            if loc[0] == "retain" and is_log(location):
                if not Path(location).is_file():
                    raise ModelError(f"models.{settings.name}.{'.'.join(loc)}: no log {location!r}")
                continue
            source = source_of(settings, location)
            source.check()
            is_read = loc != ("base",) or settings.fine_tuned is None or not settings.retain
            whole = source.whole.folder
            if is_read and whole is not None and has_other_weights(whole):
                raise _pickled(source)
            if location == settings.origin:
                source.check_tokenizer()
        except ModelError as error:
            yield loc, error
    if settings.adapter_base is not None and not any(
        Source(location).is_adapter for _, location in _named(settings)
    ):
        yield (
            ("adapter_base",),
            ModelError(
                f"models.{settings.name}.adapter_base: none of base, fine_tuned and retain is the "
                "folder of an adapter, so it has no effect; leave it out"
            ),
        )


def is_log(location: str) -> bool:
    """True if a retain model is given by its evaluation: a log, or a file of a record."""
    return location.endswith((".json", ".json.gz", ".safetensors"))


def load_tokenizer(source: Source, settings: ModelSettings) -> Any:
    """The model's tokenizer."""
    from transformers import AutoTokenizer

    source.check()
    source.check_tokenizer()
    folder = source.tokenizer.folder or source.files()
    with reading("tokenizer", source):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=settings.trust_remote_code)


def template_of(settings: ModelSettings, tokenizer: Any) -> Template:
    """The template for questions and answers that the settings name.

    Raises: ModelError that names the model, where its chat template cannot be used.
    """
    try:
        return resolve_template(settings.template, tokenizer, settings.template_args)
    except ModelError as error:
        raise ModelError(f"models.{settings.name}: {error}") from None


def template_digest(
    settings: ModelSettings, *, with_examples: bool, tokenizer: Callable[[], Any] | None = None
) -> str:
    """The digest of the rendered chat template, or of another that `may_merge`; else empty.

    Reads the tokenizer, unless the settings name a fixed template.

    with_examples  whether rows have examples in front of the question, see `Template.digest`
    tokenizer      returns the model's tokenizer; default: loads it
    """
    if settings.template not in ("auto", "chat") or settings.base == "tiny":
        if settings.template_args:
            raise ModelError(f"models.{settings.name}: {no_variables(settings.template)}")
        built_in = TEMPLATES.get(settings.template)
        return built_in.digest() if built_in and built_in.may_merge else ""
    if tokenizer is None:
        source = source_of(settings)
        template = template_of(settings, load_tokenizer(source, settings))
    else:
        template = template_of(settings, tokenizer())
    try:
        digest = template.digest(with_examples=with_examples)
    except ModelError as error:
        raise ModelError(f"models.{settings.name}: {error}") from None
    return digest if template.name == "chat" else ""


def generation_config(source: Source, settings: ModelSettings) -> Any:
    """The `generation_config` that a model gets when it is loaded; None if it cannot be read.

    Without a file of its own it is made from the model's configuration. A hub is only asked if its
    commit is known: a plan can be shown without a hub.
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
            return None  # the error is reported when the model is loaded
    with suppress(ModelError):  # likewise
        return GenerationConfig.from_model_config(read_config(source, settings))
    return None


def turn_end_entry(settings: ModelSettings, template: Template) -> list[str]:
    """What ends a turn in training, for ids; empty if it is EOS, as in earlier versions."""
    end = template.turn_end
    return [] if end is None or settings.eos_as_padding else [end.text, end.token]


def generation_entry(
    template: Template, tokenizer: Any, generation: Any, *, follows_generate: bool
) -> list[Any]:
    """What an evaluation scores and stops at, for ids; empty if it is EOS, as in earlier versions.

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
    eos, stops = int(tokenizer.eos_token_id), stop_ids(generation)
    if follows_generate:
        entry: list[Any] = []
        if generation is not None and stops != frozenset({eos}):
            entry.append(["stops", sorted(stops)])
        if rules := LogitRules.of(generation):
            entry.append(["logits", dict(rules.settings)])
        return entry
    end = template.turn_end
    entry = [] if end is None else [["ends", end.text, end.token]]
    known = {eos}
    if end is not None and end.token:
        known.add(int(tokenizer.convert_tokens_to_ids(end.token)))
    if further := sorted(stops - known):
        entry.append(["stops", further])
    return entry


def load_model(source: Source, settings: ModelSettings, *, train: bool = False) -> Any:
    """A causal LM in the settings' dtype on the fastest device; to `train` with its LoRA.

    An adapter is merged into its base: its weights are then those that a run trains. Only
    safetensors are read. Raises: ModelError, also where weights and architecture differ.
    """
    import torch

    source.check()
    if source.is_adapter:
        from unlearnbench.models.lora import load_adapted, merged

        model = merged(load_adapted(source, settings))
        model.requires_grad_(True)  # peft has frozen the base
    else:
        if not any(source.files(weights=True).glob("*.safetensors")):
            raise _pickled(source)
        model = _loaded(source, settings)
        model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    model.config.use_cache = False
    if train and settings.lora is not None:
        model = add_lora(model, settings.lora)
    if train and settings.gradient_checkpointing:
        # Renamed in transformers 5.2x; earlier versions have the old name.
        enable = getattr(model, "activation_checkpointing_enable", None)
        enable = enable or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        # Without this the adapters below the first checkpoint get no gradient.
        model.enable_input_require_grads()
    return model.train() if train else model.eval()


def read_config(source: Source, settings: ModelSettings) -> Any:
    """The model's configuration. Raises: ModelError, also for code that the settings forbid."""
    from transformers import AutoConfig

    folder = source.files()
    with reading("model", source):
        config: Any = AutoConfig.from_pretrained(
            folder, trust_remote_code=settings.trust_remote_code
        )
    check_causal(source.place, config)
    return config


def hub_errors(settings: ModelSettings) -> Iterator[tuple[_Setting, ModelError]]:
    """Errors in a hub's models, each with its setting.

    Downloads config and tokenizer, no weights; models of an unreachable hub are skipped.
    """
    for loc, source in hub_sources(settings):
        if not hub.commits_of([source.repository]):
            continue  # the hub does not answer
        try:
            with suppress(UnreachableError):
                read_config(source, settings)
                names = hub.root_files(source.repository)
                is_read = loc != ("base",) or settings.fine_tuned is None or not settings.retain
                if is_read and names and not fnmatch.filter(names, hub.WEIGHTS[0]):
                    raise _pickled(source)
        except ModelError as error:
            yield loc, error


def hub_sources(settings: ModelSettings) -> Iterator[tuple[_Setting, Source]]:
    """The models of a hub that the settings name, each with its setting; also adapters' bases."""
    wholes = ((loc, source.whole) for loc, source in _sources(settings))
    return ((loc, source) for loc, source in wholes if source.folder is None)


def _pickled(source: Source) -> ModelError:
    reason = None if source.whole.folder is None else other_kind(source.whole.folder)
    if reason is not None:
        return ModelError(f"{source.place}: no *.safetensors; {reason}")
    into = "FOLDER" if source.folder is None else source.place
    name = ", its tokenizer as well, and name FOLDER" if source.folder is None else ""
    # Weights that are missing would be written with random values.
    return ModelError(
        f"{source.place}: no *.safetensors; pickled weights are not loaded, convert them first: "
        'python -c "from transformers import AutoModelForCausalLM as M; '
        f"m, i = M.from_pretrained('{source.place}', output_loading_info=True); "
        f"assert not i['missing_keys'], i; m.save_pretrained('{into}')\"{name}"
    )


def check_weights(settings: ModelSettings) -> None:
    """Raise ModelError where a local model's weights do not match its architecture.

    Reads names and shapes only, which takes no memory.
    """
    for _, source in _sources(settings):
        if source.whole.folder is not None and any(source.files().glob("*.safetensors")):
            quiet_transformers()
            # Flash attention need not be installed where a sweep is planned.
            model = _loaded(source, settings, device_map="meta", attn_implementation="eager")
            if source.is_adapter:
                from unlearnbench.models.lora import check_adapter

                check_adapter(source, model)


def _loaded(source: Source, settings: ModelSettings, **options: Any) -> Any:
    """The model as transformers loads it. Raises: ModelError."""
    import torch
    from transformers import AutoModelForCausalLM

    config = read_config(source, settings)
    # Without a name transformers takes SDPA, and eager attention in models without SDPA. The
    # configuration is given because it could name another implementation, which None replaces.
    attention = None if settings.attention == "sdpa" else settings.attention
    folder = source.files(weights=True)
    with reading("model", source):
        if (reason := prefixed_names(folder)) is not None:
            raise ModelError(f"{source.place}: {reason}")
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, settings.dtype),
            trust_remote_code=settings.trust_remote_code,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            output_loading_info=True,
            **{"attn_implementation": attention} | options,
        )
        check_tensors(source.place, *loaded)
    return loaded[0]


@contextmanager
def reading(subject: str, source: Source) -> Generator[None, None, None]:
    """Turn every error that libraries raise on damaged files of `source` into a ModelError.

    A list for an object, text for a number or a token out of range end as TypeError,
    AttributeError or a panic of Rust, wherever the library uses them first.
    """
    from unlearnbench.base.out_of_memory import is_out_of_memory

    try:
        yield
    except (UnlearnbenchError, MemoryError):
        raise
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # of pyo3; not an Exception, not public
        if is_out_of_memory(error) or not (panic or isinstance(error, Exception)):
            raise
        reason = f"{type(error).__name__}: {_without_middle(' '.join(str(error).split()))}"
        raise ModelError(
            f"{source.place}: the {subject} cannot be loaded ({reason}); {_advice(error)}"
        ) from error


def _without_middle(text: str) -> str:
    """The text, or its two ends if it is long: libraries put their hint at the end."""
    if len(text) <= _LONGEST_REASON:
        return text
    half = _LONGEST_REASON // 2
    return f"{text[:half]} … {text[-half:]}"


def _advice(error: BaseException) -> str:
    """What to do about an error that a library raised on a model's files."""
    if "trust_remote_code" in str(error):
        return (
            "read the Python code that comes with the model and, if you trust it, set "
            "trust_remote_code: true for the model, or give --trust-remote-code"
        )
    if isinstance(error, ImportError):
        return "install the package that is missing, or choose another attention"
    return (
        "a file in it is missing or damaged, or the settings (attention, dtype) do not suit the "
        "model"
    )


def import_peft(need: str) -> Any:
    """The package peft. Raises: ModelError that begins with `need`, where it is not installed."""
    try:
        return import_optional("peft")
    except ImportError:
        raise ModelError(f"{need} peft: pip install 'unlearnbench[lora]'") from None


_NO_ADVICE = (
    "Found missing adapter keys",  # an error of ours
    "Model (has|with) `tie_word_embeddings=True`",  # `lora.merged` unties them
    "Setting `save_embedding_layers` to `True`",  # what an adapter on an embedding needs
    "Input and output embeddings are no longer tied",  # nor were they beside the adapter
    "Could not find a config file in",  # of a base that is an adapter's folder
    "The PEFT config's `base_model_name_or_path` was renamed",  # by `adapter_base`
)
"""Beginnings of warnings of peft that are of no use here."""


@contextmanager
def quiet_peft() -> Generator[None, None, None]:
    """Turn off warnings of peft on which there is nothing to do."""
    with warnings.catch_warnings():
        # peft calls transformers by deprecated names.
        warnings.simplefilter("ignore", FutureWarning)
        for beginning in _NO_ADVICE:
            warnings.filterwarnings("ignore", beginning, UserWarning)
        # peft prepares for checkpoints that have experts as layers, also where none is adapted.
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys", RuntimeWarning)
        yield


def add_lora(model: Any, lora: LoRA) -> Any:
    """`model` with trainable low-rank adapters; everything else frozen.

    Raises:
        ModelError: peft cannot adapt the layers that the settings name.
    """
    peft = import_peft("lora needs")
    targets = lora.target_modules
    is_all_linear = targets == "all-linear"
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        target_parameters=list(lora.target_parameters) or None,
        exclude_modules=(linear_routers(model) or None) if is_all_linear else None,
        task_type="CAUSAL_LM",
    )
    experts = ExpertStacks(model)
    with quiet_peft():
        try:
            adapted = peft.get_peft_model(model, config)
        except ValueError as error:
            reason = _without_middle(" ".join(str(error).split()))
            raise ModelError(
                f"lora: peft cannot adapt a {type(model).__name__} ({reason}); name other "
                "layers in lora.target_modules"
            ) from error
    may_leave_out = is_all_linear and not lora.target_parameters
    if may_leave_out and (line := experts.unadapted_notice(adapted)):
        warn_once(line)
    return adapted


def check_vocabulary(model: Any, tokenizer: Any) -> None:
    """Raise ModelError where the tokenizer makes ids that the model has no embedding for."""
    # Not `num_embeddings`, which some of peft's wrappers do not have.
    size = len(model.get_input_embeddings().weight)
    largest = _largest_id(tokenizer)
    if largest >= size:
        raise ModelError(
            f"the tokenizer makes ids up to {largest} of texts, and the model's embedding has "
            f"{size} entries; they do not belong together: name the model's own tokenizer"
        )


def max_context(model: Any) -> int | None:
    """Tokens that a model can read; None where its configuration has no bound."""
    context: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return context


_CONTEXT_KEYS = (
    *("max_position_embeddings", "n_positions", "n_ctx"),
    # Of models without a table of positions, the length that they were trained on.
    *("max_seq_len", "max_sequence_length", "seq_length", "context_length"),
)


def context_length(config: Any) -> int | None:
    """Return the tokens that a model can read, or was trained to read, by its config.

    None where the config has no such number, as of most state-space models.
    """
    text_config = config.get_text_config()
    for key in _CONTEXT_KEYS:
        value = getattr(text_config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def check_context(
    model: Any, rows: Sequence[Row], questions: Sequence[Question], setting: str
) -> None:
    """Raise ModelError where a training row is longer than the model can read.

    setting  that bounds the rows, for the message
    """
    context = max_context(model)
    for row, question in zip(rows, questions, strict=True):
        if context is not None and len(row.ids) > context:
            where = question.place or f"the row {row_text(question.opening)}"
            raise ModelError(
                f"{where}: {len(row.ids)} tokens to train on, but the model's context is "
                f"{context}; set {setting} to {context} or less, and the row is cut there"
            )


def _largest_id(tokenizer: Any) -> int:
    """The largest id in an encoded text with its template.

    Added tokens, such as a `<pad>` behind the vocabulary, count where texts begin or end with them,
    or the chat template names them.
    """
    template = str(tokenizer.chat_template)
    added: dict[str, int] = tokenizer.get_added_vocab()
    ids = [number for token, number in added.items() if token in template]
    ids += [item for item in (tokenizer.bos_token_id, tokenizer.eos_token_id) if item is not None]
    return max(map(int, [tokenizer.vocab_size - 1, *ids]))


def pad_id(tokenizer: Any) -> int:
    """The id for padding; attention masks it, so any id will do.

    Raises: ModelError where the tokenizer has no EOS token, which ends every answer.
    """
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no EOS token, which ends every answer; set one")
    pad = tokenizer.pad_token_id
    if pad is None or pad > _largest_id(tokenizer):  # the model may have no embedding for it
        return int(tokenizer.eos_token_id)
    return int(pad)


def quiet_transformers() -> None:
    """Turn off load reports and progress bars of libraries; our warnings are still printed."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    # The hub's failed retries end in an error of ours, which names what is missing.
    for name in ("accelerate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
