"""Models of texts that metrics read: classifiers and sentence encoders, from a folder or the hub.

A configuration names the model of a metric (`TextModelMetric`), so that nothing is downloaded
unless it is asked for. Models run on the CPU in float32, one text at a time, so that no number
depends on other texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray
from unlearnbench.base import hub
from unlearnbench.base.errors import PluginError, UnavailableError

_LEAST_LENGTH = 1e-9
"""Divisor of the mean over a text without tokens, as in sentence-transformers."""


class TextModel(NamedTuple):
    """The model that a metric names."""

    metric: str
    """Name of the metric, for messages."""
    kind: str
    """What the model is, for messages: `classifier`, `sentence encoder`."""
    name: str
    """Folder or hub id."""
    revision: str | None
    """Commit, branch or tag of the hub's model."""

    @property
    def repository(self) -> hub.Repository | None:
        """The hub's repository; None for a folder."""
        if Path(self.name).is_dir():
            return None
        return hub.Repository("model", self.name, self.revision)

    def folder(self, *patterns: str) -> Path:
        """Return the folder of the model, after a download if needed.

        Args:
            patterns: Further files, in subfolders.
        """
        repository = self.repository
        if repository is None:
            return Path(self.name)
        folder = hub.snapshot(repository, (*hub.SMALL, *hub.WEIGHTS))
        if patterns:
            hub.snapshot(repository, patterns, subfolders=True)
        return folder

    def cannot_be_loaded(self, error: Exception) -> UnavailableError:
        """Return the error to raise in place of one of the libraries or of the hub."""
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if hub.looks_like_folder(self.name) and not Path(self.name).is_dir():
            # The hub would state its rule for ids.
            reason = "there is no such folder"
        return UnavailableError(
            f"{self.metric}: the {self.kind} {self.name!r} cannot be loaded ({reason}); set "
            "`model` to a folder with it, let the hub be reached once, or leave the metric out"
        )


class TextModelMetric(Metric):
    """Base of metrics that read texts by a model, which a configuration has to name."""

    plugin_name: ClassVar[str]
    """Name of the metric, for messages."""
    kind_of_model: ClassVar[str]
    """What the model is, for messages: `classifier`."""
    usual_model: ClassVar[str]
    """Advice which model to name: `org/model for the profile closer-look`."""

    model: str | None = Field(default=None, description="hub id or folder of the model")
    revision: str | None = Field(default=None, description="commit or tag of the hub's model")

    @property
    def source(self) -> TextModel:
        """The model.

        Raises:
            UnavailableError: No model is named.
        """
        if self.model is None:
            raise UnavailableError(
                f"{self.plugin_name} has no {self.kind_of_model}: name one with its setting "
                f"`model`, {self.usual_model}"
            )
        return TextModel(self.plugin_name, self.kind_of_model, self.model, self.revision)

    @property
    def repositories(self) -> Mapping[str, hub.Repository]:
        """The hub's repository of the model, if it is one."""
        repository = None if self.model is None else self.source.repository
        return {} if repository is None else {"model": repository}


LOADING_ERRORS = (hub.HubError, OSError, ValueError, KeyError)
"""Errors of a model that is missing or damaged."""


class Classifier:
    """A sequence classifier with its tokenizer."""

    def __init__(self, source: TextModel, target: str) -> None:
        """Load the classifier.

        Args:
            source: Where it is.
            target: A label that it must have.

        Raises:
            UnavailableError: The classifier cannot be loaded.
            PluginError: It does not have the label.
        """
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            folder = source.folder()
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
            self._model: Any = AutoModelForSequenceClassification.from_pretrained(
                folder, use_safetensors=True, dtype=torch.float32
            ).eval()
        except LOADING_ERRORS as error:
            raise source.cannot_be_loaded(error) from None
        locations = {str(label): int(i) for i, label in self._model.config.id2label.items()}
        if target not in locations:
            raise PluginError(
                f"{source.metric}: {source.name!r} has no label {target!r}; set target to one of "
                f"{', '.join(locations)}"
            )
        self._target = locations[target]
        self.chooses_target = lru_cache(maxsize=16384)(self._chooses_target)
        """Whether the target is the most probable label, of a text or of a pair of texts. Tables
        and tests read the same answers several times."""

    @property
    def most_tokens(self) -> int | None:
        """Number of tokens that the model can read; None without a bound."""
        config = self._model.config
        # DeBERTa counts distances between tokens. It has no vector for each position.
        if not getattr(config, "position_biased_input", True):
            return None
        places: int | None = getattr(config, "max_position_embeddings", None)
        return places

    def probability(self, *texts: str, max_tokens: int | None) -> float:
        """Return the probability of the target, of a text or of a pair of texts.

        Args:
            texts: One or two.
            max_tokens: Number of tokens that are read, special tokens included; None for all.
        """
        return float(self._probabilities(texts, max_tokens)[self._target])

    def _chooses_target(self, *texts: str) -> bool:
        probabilities = self._probabilities(texts, self.most_tokens)
        return int(probabilities.argmax()) == self._target

    def _probabilities(self, texts: Sequence[str], max_tokens: int | None) -> Any:
        import torch

        is_cut = max_tokens is not None
        encoded = self._tokenizer(
            *texts, truncation=is_cut, max_length=max_tokens, return_tensors="pt"
        )
        with torch.inference_mode():
            return self._model(**encoded).logits[0].softmax(0)


class SentenceEncoder:
    """A model that turns a sentence into a vector, as the library sentence-transformers does.

    Its folder may have the library's files. `modules.json` names what follows on the transformer.
    `Pooling` (the mean over tokens, or the first token) is supported, and so is `Normalize`, which
    changes no cosine. `sentence_bert_config.json` has the largest number of tokens. A folder
    without these files has the mean over tokens, and reads as many as the model can.
    """

    def __init__(self, source: TextModel) -> None:
        """Load the encoder.

        Raises:
            UnavailableError: The encoder cannot be loaded.
            PluginError: It has a part that is not supported.
        """
        import torch
        from transformers import AutoModel, AutoTokenizer

        try:
            folder = source.folder("*_Pooling/config.json")
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
            self._model: Any = AutoModel.from_pretrained(
                folder, use_safetensors=True, dtype=torch.float32
            ).eval()
            modules = _json(folder / "modules.json", [])
            rules = _json(folder / "sentence_bert_config.json", {})
            kinds = {str(module["type"]).rpartition(".")[2]: module["path"] for module in modules}
            pooling: dict[str, Any] = {}
            if "Pooling" in kinds:
                pooling = _json(folder / kinds["Pooling"] / "config.json", {})
        except LOADING_ERRORS as error:
            raise source.cannot_be_loaded(error) from None
        other_kinds = kinds.keys() - {"Transformer", "Pooling", "Normalize"}
        if other_kinds:
            raise PluginError(
                f"{source.metric}: {source.name!r} has the part {min(other_kinds)}, and only a "
                "transformer with pooling is supported; name another sentence encoder"
            )
        self._reads_first_token = _pooling_of(pooling, source) == "cls"
        self._is_lower_case = bool(rules.get("do_lower_case", False))
        self._max_tokens = rules.get("max_seq_length") or min(
            self._model.config.max_position_embeddings, self._tokenizer.model_max_length
        )
        self.embedding = lru_cache(maxsize=4096)(self._embedding)
        """Returns the vector of a text. References come again with every model."""

    def _embedding(self, text: str) -> FloatArray:
        """Return the vector of a text [d]."""
        import torch

        stripped = text.strip()
        encoded = self._tokenizer(
            stripped.lower() if self._is_lower_case else stripped,
            truncation=True,
            max_length=self._max_tokens,
            return_tensors="pt",
        )
        with torch.inference_mode():
            states = self._model(**encoded).last_hidden_state[0]  # [tokens, d]
        if self._reads_first_token:
            vector: FloatArray = states[0].double().numpy()
            return vector
        mask = encoded["attention_mask"][0].unsqueeze(1).float()
        mean = (states * mask).sum(0) / mask.sum().clamp(min=_LEAST_LENGTH)
        mean_vector: FloatArray = mean.double().numpy()
        return mean_vector

    def cosine(self, text: str, other: str) -> float:
        """Return the cosine of two texts' vectors; 0 if one of them has no length."""
        vector = self.embedding(text)
        other_vector = self.embedding(other)
        lengths = float(np.linalg.norm(vector) * np.linalg.norm(other_vector))
        return float(vector @ other_vector) / lengths if lengths > 0 else 0.0


def _json(path: Path, default: Any) -> Any:
    """Return what a file of a model has; the default if there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else default


def _pooling_of(rules: dict[str, Any], source: TextModel) -> str:
    """Return how the vectors of tokens become one vector: `mean` or `cls`.

    Raises:
        PluginError: It is another way.
    """
    stated = rules.get("pooling_mode")
    modes = [stated] if isinstance(stated, str) else stated
    if modes is None:
        # Files of earlier versions have a truth value for each way.
        prefix = "pooling_mode_"
        names = {"mean_tokens": "mean", "cls_token": "cls"}
        on = [key.removeprefix(prefix) for key in rules if key.startswith(prefix) and rules[key]]
        modes = [names.get(name, name) for name in on] or ["mean"]
    if modes not in (["mean"], ["cls"]):
        raise PluginError(
            f"{source.metric}: {source.name!r} pools tokens by {' and '.join(modes)}, and only the "
            "mean and the first token are supported; name another sentence encoder"
        )
    return str(modes[0])


@lru_cache(maxsize=4)
def classifier(source: TextModel, target: str) -> Classifier:
    """Load a classifier once in a process, see `Classifier`."""
    return Classifier(source, target)


@lru_cache(maxsize=2)
def sentence_encoder(source: TextModel) -> SentenceEncoder:
    """Load a sentence encoder once in a process, see `SentenceEncoder`."""
    return SentenceEncoder(source)
