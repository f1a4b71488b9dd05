"""Where the weights of a model come from: a folder, a GGUF file, a packaged model or a hub.

A folder may contain a LoRA adapter. An adapter is read as one model together with the base model
that its configuration names.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearnbench.base import hub
from unlearnbench.base.errors import ModelError
from unlearnbench.base.hashing import content_hash, content_of_files, kept_hash
from unlearnbench.base.redaction import redact
from unlearnbench.models.folder_kinds import other_kind
from unlearnbench.models.gguf import check_file, content_of, converted, gguf_file

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_BASE_KEYS = ("base_model_name_or_path", "revision")
"""Keys of an adapter's configuration that say where its base is, not what the adapter computes."""
_MOST_ADAPTERS = 8
"""Largest number of adapters on top of each other. An adapter that names itself has no end."""
_NAME_BASE = "--adapter-base on the command line, adapter_base in a configuration"


class UnreachableError(ModelError):
    """A hub cannot be reached for a model or tokenizer."""


@dataclass(frozen=True)
class Source:
    """The source of a model's weights.

    Attributes:
        place: A folder, a GGUF file, the name of a packaged model, or a hub id.
        revision: Commit or tag of a hub id. None: the hub's default branch.
        adapter_base: The base model of an adapter. None: the base that the adapter's own
            configuration names.
    """

    place: str
    revision: str | None = None
    adapter_base: str | None = None

    @classmethod
    def parse(
        cls, text: str, revision: str | None = None, adapter_base: str | None = None
    ) -> Source:
        """Parse a folder, or a hub id that may end in `@revision`.

        Args:
            text: The text to parse, such as `org/model@main`.
            revision: The revision if the text names none.
            adapter_base: See `Source.adapter_base`.

        Raises:
            ModelError: The text is a URL, or has an empty part around its `@`.
        """
        if "://" in text:
            raise ModelError(
                f"{redact(text)!r} is a URL; a model is a folder or a hub id: download it "
                "and give the folder"
            )
        location, at, named_revision = text.rpartition("@")
        if not at or Path(text).exists():
            return cls(text, revision, adapter_base)
        if not location or not named_revision:
            raise ModelError(f"{text!r}: expected a hub id, or id@revision with a commit or tag")
        return cls(location, named_revision, adapter_base)

    @property
    def folder(self) -> Path | None:
        """The local folder of the model, or None for a hub id.

        A GGUF file is converted into a folder the first time.
        """
        if gguf_file(self.place) is not None:
            return converted(self.place)
        path = Path(self.place)
        return path if path.is_dir() else None

    @property
    def repository(self) -> hub.Repository:
        """The hub's repository, if `place` is a hub id."""
        return hub.Repository("model", self.place, self.revision)

    @property
    def is_adapter(self) -> bool:
        """Whether `place` is a folder with an adapter instead of a whole model."""
        path = Path(self.place)
        return (path / ADAPTER_CONFIG).is_file() and not (path / "config.json").is_file()

    @property
    def base(self) -> Source:
        """The model that an adapter is on top of, which may be an adapter itself.

        A relative folder in the adapter's configuration is looked up from the working directory
        first, and then from the adapter's folder.

        Raises:
            ModelError: The adapter's configuration names no base.
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
        beside_adapter = Path(self.place) / name
        is_beside_adapter = not Path(name).is_dir() and beside_adapter.is_dir()
        return Source(str(beside_adapter) if is_beside_adapter else name, config.get("revision"))

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
        for _ in range(_MOST_ADAPTERS):
            if not source.is_adapter:
                return source
            source = source.base
        raise ModelError(
            f"{self.place}: more than {_MOST_ADAPTERS} adapters on top of each other, or one whose "
            f"base is itself; correct {ADAPTER_CONFIG}"
        )

    @property
    def tokenizer(self) -> Source:
        """The source of the tokenizer: the model's folder, or the base if an adapter has none."""
        is_bare_adapter = self.is_adapter and not any(Path(self.place).glob("tokenizer*"))
        return self.base.tokenizer if is_bare_adapter else self

    @contextmanager
    def _explains_base(self) -> Generator[None, None, None]:
        """Say in an error about an adapter's base where the base is named and how to change it."""
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
        """Return the folder with the files of the whole model, without adapters.

        Files of a hub are downloaded into the hub's cache.

        Args:
            weights: Whether the weights must be there, too. Configuration and tokenizer always are.

        Raises:
            UnreachableError: A hub cannot be reached.
            ModelError: The hub refuses, or has an adapter under this id.
        """
        if self.is_adapter:
            with self._explains_base():
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
        """Return a hash of local weights, configuration and tokenizer, or of a log.

        The hash of an adapter covers its base, too, wherever the base is. The result is empty for
        a hub id.
        """
        files = self._hash(*hub.SMALL, *hub.WEIGHTS)
        if not self.is_adapter:
            return files
        config = self._adapter_config()
        computing_keys = {key: value for key, value in config.items() if key not in _BASE_KEYS}
        return content_hash([files, computing_keys, self.base.identity()])

    def identity(self) -> str:
        """Return the hash of the content, or of a hub's id and revision."""
        hub_id = f"{self.place}@{self.revision}".encode()
        return self.content() or hashlib.sha256(hub_id).hexdigest()[:16]

    def weights(self) -> str:
        """Return a hash of a folder's weights only, as records have it. A hub id: its identity."""
        weights = self._hash(*hub.WEIGHTS) or self.identity()
        return content_hash([weights, self.base.weights()]) if self.is_adapter else weights

    def _hash(self, *patterns: str) -> str:
        path = Path(self.place)
        if gguf_file(self.place) is not None:
            return content_of(self.place)
        if self.folder is None:
            return kept_hash(path)[:16] if path.is_file() else ""
        files = {file for pattern in patterns for file in path.glob(pattern) if file.is_file()}
        files.discard(path / "prepared.json")  # it contains times
        if self.is_adapter:
            files.discard(path / ADAPTER_CONFIG)  # it contains the place of the base
        return content_of_files(files)

    def check(self) -> None:
        """Check that `place` is a model or an adapter, if it looks like a folder.

        Without this check, transformers would ask the hub for a minute before its error.

        Raises:
            ModelError: The folder or file is missing, or contains something else.
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
            with self._explains_base():
                _ = self.whole  # raises if adapters are on top of each other without end
                self.base.check()
        elif self.folder is None:
            if hub.looks_like_folder(self.place):
                raise ModelError(
                    f"no model folder {redact(self.place)!r}; give a folder or a hub id"
                )
        elif not (self.folder / "config.json").is_file():
            reason = other_kind(self.folder) or "this is not a model folder"
            raise ModelError(f"{self.place}: no config.json; {reason}")

    def check_tokenizer(self) -> None:
        """Raise ModelError if a folder contains no tokenizer."""
        folder = self.tokenizer.folder
        if folder is not None and not any(folder.glob("tokenizer*")):
            raise ModelError(
                f"{folder}: no tokenizer files (tokenizer.json …) with the model; save the "
                "model's tokenizer into that folder"
            )


def pickled_weights(source: Source) -> ModelError:
    """Return the error for a model without safetensors, with the command that converts it."""
    folder = source.whole.folder
    reason = None if folder is None else other_kind(folder)
    if reason is not None:
        return ModelError(f"{source.place}: no *.safetensors; {reason}")
    into = "FOLDER" if source.folder is None else source.place
    name = ", its tokenizer as well, and name FOLDER" if source.folder is None else ""
    # The command asserts that no weight is missing, because a missing weight would be written
    # with random values.
    return ModelError(
        f"{source.place}: no *.safetensors; pickled weights are not loaded, convert them first: "
        'python -c "from transformers import AutoModelForCausalLM as M; '
        f"m, i = M.from_pretrained('{source.place}', output_loading_info=True); "
        f"assert not i['missing_keys'], i; m.save_pretrained('{into}')\"{name}"
    )
