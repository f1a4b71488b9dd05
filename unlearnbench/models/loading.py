"""Models and tokenizers from a hub or a folder, and LoRA adapters around them."""

from __future__ import annotations

import fnmatch
import hashlib
import logging
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from unlearnbench import hub
from unlearnbench.bounded import parse_json, shortened
from unlearnbench.data.encoding import Template, no_variables, resolve_template
from unlearnbench.digests import file_hash
from unlearnbench.errors import ModelError, UnlearnbenchError
from unlearnbench.models.tensors import check_causal, check_tensors
from unlearnbench.optional import optional
from unlearnbench.redaction import redact
from unlearnbench.settings import LoRA, ModelSettings


class UnreachableError(ModelError):
    """A hub that does not give a model or tokenizer now."""


@dataclass(frozen=True)
class Source:
    """Where weights come from: a folder here, or a hub id with its revision."""

    place: str
    revision: str | None = None

    @classmethod
    def named(cls, text: str, revision: str | None = None) -> Source:
        """From a configuration: a folder, or a hub id that may end in `@revision`.

        revision  where the text names none
        """
        if "://" in text:
            raise ModelError(
                f"{redact(text)!r} is an address, and a model is a folder or a hub id; download it "
                "and give the folder"
            )
        place, at, own = text.rpartition("@")
        if not at or Path(text).is_dir():
            return cls(text, revision)
        if not place or not own:
            raise ModelError(f"{text!r}: expected a hub id, or id@revision with a commit or tag")
        return cls(place, own)

    @property
    def folder(self) -> Path | None:
        """The folder, where `place` is one."""
        path = Path(self.place)
        return path if path.is_dir() else None

    @property
    def repository(self) -> hub.Repository:
        """The hub's, where `place` is not a folder."""
        return hub.Repository("model", self.place, self.revision)

    def files(self, *, weights: bool = False) -> Path:
        """The folder with the model's files; of a hub, in its cache, at the commit that is read.

        weights   these too; config and tokenizer are always there

        Raises: UnreachableError where a hub does not give them, ModelError where it refuses them.
        """
        if self.folder is not None:
            return self.folder
        patterns = (*hub.SMALL, *hub.WEIGHTS) if weights else hub.SMALL
        try:
            return hub.snapshot(self.repository, patterns)
        except hub.HubError as error:
            if error.answered:
                raise ModelError(f"{self.place}: {error}") from error
            raise UnreachableError(
                f"{self.place}: neither the hub nor its cache has the model's files ({error}); "
                "check the id or folder, and HF_HUB_OFFLINE where the hub may be asked"
            ) from error

    def identity(self) -> str:
        """Hash of the folder's weights; of id and revision where a hub has them."""
        if self.folder is None:
            return hashlib.sha256(f"{self.place}@{self.revision}".encode()).hexdigest()[:16]
        digest = hashlib.sha256()
        for path in sorted(p for pattern in hub.WEIGHTS for p in self.folder.glob(pattern)):
            digest.update(path.name.encode())
            digest.update(_digest(path, path.stat().st_size, path.stat().st_mtime_ns))
        return digest.hexdigest()[:16]

    def check(self) -> None:
        """Raise ModelError where `place` looks like a folder but none is there.

        transformers would ask the hub for a minute before it says so.
        """
        scheme, is_url, _ = self.place.partition("://")
        if is_url:  # not printed whole: it may hold a password
            raise ModelError(
                f"no model is read from {shortened(scheme)[1:-1]}://…; give a folder or a hub id"
            )
        looks_local = self.place.startswith((".", "/", "~")) or self.place.count("/") > 1
        if self.folder is None and looks_local:
            raise ModelError(f"no model folder {self.place!r}; give a folder or a hub id")
        if self.folder is None:
            return
        if not (self.folder / "config.json").is_file():
            raise ModelError(f"{self.place}: no config.json; this is no model folder")

    def check_tokenizer(self) -> None:
        """Raise ModelError where a folder holds no tokenizer."""
        if self.folder is not None and not any(self.folder.glob("tokenizer*")):
            raise ModelError(
                f"{self.folder}: no tokenizer files (tokenizer.json …) beside the model; save the "
                "model's tokenizer into that folder"
            )


@lru_cache(maxsize=1024)  # a process asks for each of its runs, and 14 GB take ten seconds
def _digest(path: Path, size: int, changed: int) -> bytes:  # noqa: ARG001  # they tell files apart
    return bytes.fromhex(file_hash(path))


def check_sources(settings: ModelSettings) -> None:
    """Raise ModelError where a folder or log that the settings name cannot be used.

    Looks only at what lies here, and loads nothing: hubs are asked when a model is needed.
    """
    for _, error in source_errors(settings):
        raise error


def source_errors(settings: ModelSettings) -> Iterator[tuple[tuple[str, ...], ModelError]]:
    """What `check_sources` finds: the setting, as steps below the model, and what is wrong."""
    named: dict[tuple[str, ...], str | None] = {
        ("base",): settings.base,
        ("fine_tuned",): settings.fine_tuned,
    }
    named |= {("retain", split): place for split, place in settings.retain.items()}
    for loc, place in named.items():
        try:
            if place is None or (loc, place) == (("base",), "tiny"):
                continue
            if loc[0] == "retain" and is_log(place):
                if not Path(place).is_file():
                    raise ModelError(f"models.{settings.name}.{'.'.join(loc)}: no log {place!r}")
                continue
            source = Source.named(place, settings.revision if loc == ("base",) else None)
            source.check()
            if loc == ("base",):
                source.check_tokenizer()
        except ModelError as error:
            yield loc, error


def is_log(place: str) -> bool:
    """Whether a retain model is given by its evaluation log."""
    return place.endswith((".json", ".json.gz"))


def load_tokenizer(source: Source, settings: ModelSettings) -> Any:
    """The model's tokenizer; `Encoder` refuses one that is not fast."""
    from transformers import AutoTokenizer

    source.check()
    source.check_tokenizer()
    folder = source.files()
    with reading("tokenizer", source):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=settings.trust_remote_code)


def template_of(settings: ModelSettings, tokenizer: Any) -> Template:
    """The text around questions and answers that the settings ask for.

    Raises: ModelError that names the model, where its chat template cannot be used.
    """
    try:
        return resolve_template(settings.template, tokenizer, settings.template_args)
    except ModelError as error:
        raise ModelError(f"models.{settings.name}: {error}") from None


def template_digest(settings: ModelSettings) -> str:
    """The digest of the rendered chat template; empty where the model has another template.

    Reads the tokenizer, unless the settings alone say that the template is fixed.
    """
    if settings.template not in ("auto", "chat") or settings.base == "tiny":
        if settings.template_args:
            raise ModelError(f"models.{settings.name}: {no_variables(settings.template)}")
        return ""
    source = Source.named(settings.base, settings.revision)
    template = template_of(settings, load_tokenizer(source, settings))
    return template.digest if template.name == "chat" else ""


def load_model(source: Source, settings: ModelSettings, *, train: bool = False) -> Any:
    """A causal LM in the settings' dtype on the fastest device; with LoRA where asked and `train`.

    Only safetensors are read. Raises ModelError with the place and the fix, where weights and
    architecture differ too: transformers fills what is missing with random numbers.
    """
    import torch

    source.check()
    check_code(source, settings)
    if not any(source.files(weights=True).glob("*.safetensors")):
        raise _pickled(source)
    model = _loaded(source, settings)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    model.config.use_cache = False
    if train and settings.lora is not None:
        model = add_lora(model, settings.lora)
    if train and settings.gradient_checkpointing:
        # Renamed in transformers 5.2x; the old name stays for what is installed elsewhere.
        enable = getattr(model, "activation_checkpointing_enable", None)
        enable = enable or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        # Without this the adapters below the first checkpoint get no gradient.
        model.enable_input_require_grads()
    return model.train() if train else model.eval()


def check_code(source: Source, settings: ModelSettings) -> None:
    """Raise ModelError where a model runs code of its repository, and the settings forbid it."""
    from transformers import CONFIG_MAPPING

    path = source.files() / "config.json"
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
        code, kind = config.get("auto_map"), config.get("model_type")
    except (OSError, ValueError, AttributeError):  # what is wrong with it, `reading` reports
        return
    known = isinstance(kind, str) and kind in CONFIG_MAPPING
    if code and not known and not settings.trust_remote_code:
        raise ModelError(
            f"{source.place}: transformers has no model type {shortened(kind)}, and the code that "
            "comes with the model is not run unless allowed; read it, then set the model's "
            "trust_remote_code: true, or name a model of a type that transformers has"
        )


def published_errors(
    settings: ModelSettings,
) -> Iterator[tuple[tuple[str, ...], ModelError]]:
    """What is wrong with a hub's models: the setting, as steps below the model, and the error.

    Fetches config and tokenizer, no weights; what no hub gives now is passed over.
    """
    for loc, source in published_sources(settings):
        if not hub.commits_of([source.repository]):
            continue  # the hub does not answer
        try:
            with suppress(UnreachableError):
                source.files()
                check_code(source, settings)
                names = hub.root_files(source.repository)
                is_read = loc != ("base",) or settings.fine_tuned is None or not settings.retain
                if is_read and names and not fnmatch.filter(names, hub.WEIGHTS[0]):
                    raise _pickled(source)
        except ModelError as error:
            yield loc, error


def published_sources(settings: ModelSettings) -> Iterator[tuple[tuple[str, ...], Source]]:
    """The models of a hub that the settings name: the setting, as steps below the model."""
    named: dict[tuple[str, ...], str | None] = {("fine_tuned",): settings.fine_tuned}
    named |= {("retain", split): place for split, place in settings.retain.items()}
    if settings.base != "tiny":
        named[("base",)] = settings.base
    for loc, place in named.items():
        if place is not None and not is_log(place):
            source = Source.named(place, settings.revision if loc == ("base",) else None)
            if source.folder is None:
                yield loc, source


def _pickled(source: Source) -> ModelError:
    convert = "load them and save_pretrained() into a folder, and name that"
    return ModelError(
        f"{source.place}: no *.safetensors; pickled weights are not loaded, convert them first"
        + (f": {convert}" if source.folder is None else "")
    )


def check_weights(settings: ModelSettings) -> None:
    """Raise ModelError where a model's folder here does not hold the weights of its architecture.

    Reads names and shapes alone, which takes no memory.
    """
    places = [settings.fine_tuned, *settings.retain.values()]
    sources = [Source.named(one) for one in places if one and not is_log(one)]
    if settings.base != "tiny":
        sources.append(Source.named(settings.base, settings.revision))
    for source in sources:
        if source.folder is not None and any(source.folder.glob("*.safetensors")):
            quiet_transformers()
            # A flash attention need not be installed where a sweep is planned.
            _loaded(source, settings, device_map="meta", attn_implementation="eager")


def _loaded(source: Source, settings: ModelSettings, **how: Any) -> Any:
    """The model as transformers loads it. Raises: ModelError."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = source.files(weights=True)
    with reading("model", source):
        config: Any = AutoConfig.from_pretrained(
            folder, trust_remote_code=settings.trust_remote_code
        )
        check_causal(source.place, config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, settings.dtype),
            trust_remote_code=settings.trust_remote_code,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            output_loading_info=True,
            **{"attn_implementation": settings.attention} | how,
        )
        check_tensors(source.place, *loaded)
    return loaded[0]


@contextmanager
def reading(what: str, source: Source) -> Generator[None, None, None]:
    """Raise a ModelError for all that libraries raise on files that do not fit `source`'s kind.

    The files are anybody's: a list for an object, text for a number and a token out of range end
    as TypeError, AttributeError or a panic of Rust, wherever the library uses them first.
    """
    from unlearnbench.shortage import is_out_of_memory

    try:
        yield
    except (UnlearnbenchError, MemoryError):
        raise
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # of pyo3: no Exception, and not public
        if is_out_of_memory(error) or not (panic or isinstance(error, Exception)):
            raise
        raise _unreadable(what, source, error) from error


def add_lora(model: Any, lora: LoRA) -> Any:
    """`model` with trainable low-rank adapters; everything else frozen."""
    try:
        peft = optional("peft")
    except ImportError:
        raise ModelError("lora needs peft: pip install 'unlearnbench[lora]'") from None
    targets = lora.target_modules
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        # peft asks transformers by names that are on their way out: nothing to act on here.
        warnings.simplefilter("ignore", FutureWarning)
        return peft.get_peft_model(model, config)


def check_vocabulary(model: Any, tokenizer: Any) -> None:
    """Raise ModelError where texts become ids that the model has no embedding for."""
    size = model.get_input_embeddings().num_embeddings
    largest = _largest_id(tokenizer)
    if largest >= size:
        raise ModelError(
            f"the tokenizer makes ids up to {largest} of texts, and the model's embedding has "
            f"{size} entries; they do not belong together: name the model's own tokenizer"
        )


def _largest_id(tokenizer: Any) -> int:
    """The largest id that a text becomes, by its words or by the template around them.

    Tokens that were added, such as a `<pad>` behind the vocabulary, count where the tokenizer
    begins or ends texts with them, or its chat template names them.
    """
    template = str(tokenizer.chat_template)
    added: dict[str, int] = tokenizer.get_added_vocab()
    ids = [number for token, number in added.items() if token in template]
    ids += [one for one in (tokenizer.bos_token_id, tokenizer.eos_token_id) if one is not None]
    return max(map(int, [tokenizer.vocab_size - 1, *ids]))


def pad_id(tokenizer: Any) -> int:
    """The id to pad with; attention leaves padding out, so any id serves.

    Raises: ModelError where the tokenizer has no EOS token, which ends every answer.
    """
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no EOS token, which ends every answer; set one")
    pad = tokenizer.pad_token_id
    if pad is None or pad > _largest_id(tokenizer):  # the model may have no embedding for it
        return int(tokenizer.eos_token_id)
    return int(pad)


def quiet_transformers() -> None:
    """Keep load reports and progress bars out of the terminal; warnings of ours stay."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    # The hub's retries end in an error of ours, which says what could not be had.
    for name in ("accelerate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _unreadable(what: str, source: Source, error: BaseException) -> ModelError:
    reason = " ".join(" ".join(str(error).strip().splitlines()[:2]).split())[:300]
    if not isinstance(error, OSError | ValueError | ImportError):
        reason = f"{type(error).__name__}: {reason}"
    fix = "a file in it is damaged, or the settings (attention, dtype) do not suit the model"
    return ModelError(
        f"{source.place}: the {what} cannot be loaded ({reason or type(error).__name__}); {fix}"
    )
