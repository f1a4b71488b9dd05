"""The files of a sweep's folder as plain values: `plan.json`, records, observations.

The formats are those of docs/reference/records.md. Hashes are not checked, because a damaged folder
is another test's subject.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

Array = NDArray[np.float64]
Split = float | str

PLAIN = ""
"""Variant of an evaluation without an attack."""
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class TokenObservations:
    """What is known of the tokens of a set's true answers, one list entry for each answer."""

    loss: list[Array]
    """Negative log-likelihoods, including the tokens that end the turn."""
    is_hit: list[NDArray[np.bool_]]
    """Whether a token is the most probable one."""
    end_counts: list[int]
    """Tokens at the end of each answer that end the turn; 0 for an answer that was cut."""
    mean_logprob: list[Array] | None
    logprob_variance: list[Array] | None

    def without_end(self, values: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The part of each answer's values in front of the tokens that end the turn."""
        shortened: list[NDArray[Any]] = []
        for of_answer, count in zip(values, self.end_counts, strict=True):
            shortened.append(of_answer[: len(of_answer) - count])
        return shortened


@dataclass(frozen=True)
class SetObservations:
    """The observations of one evaluation set; arrays have an entry for each question."""

    questions: list[str]
    generated: list[str]
    references: list[str]
    answer_loss: Array
    answer_tokens: Array
    base_loss: Array
    """Of the paraphrased answer; of the answer itself where there is no paraphrase."""
    perturbed_loss: Array
    """[n, k]"""
    perturbed_tokens: Array
    """[n, k]"""
    rouge_l_recall: Array
    tokens: TokenObservations | None
    sample_scores: Array | None
    """[n, s] ROUGE-L recall of sampled answers."""
    options: list[list[str]]
    answer_index: NDArray[np.int64] | None
    compressed_bytes: Array | None
    grad_norm: Array | None
    start_loss: Array | None
    token_entropy: Array | None
    word_rule: str
    places: NDArray[np.int64] | None
    """[n] Places of the rows among all rows of the set, if an attack left some out."""

    @property
    def size(self) -> int:
        """Number of questions."""
        return len(self.answer_loss)

    @property
    def is_perturbed(self) -> NDArray[np.bool_]:
        """[n, k] Whether there is a perturbed answer. A row may have fewer than k of them.

        A loss that is NaN is padding if the answer has no tokens, and undefined otherwise.
        """
        return ~np.isnan(self.perturbed_loss) | (self.perturbed_tokens > 0)


Sets = Mapping[str, SetObservations]


@dataclass(frozen=True)
class Record:
    """A run, or an evaluation of a start or retain model."""

    id: str
    kind: str
    """`run`, `fine-tuned` (the start model) or `retain`."""
    model: str
    split: Split
    method: str
    learning_rate: float | None
    seed: int
    spec: Mapping[str, Any]
    status: str
    """`finished`, `collapsed`, `failed` or `stopped`."""
    profile: str
    error: str | None
    ended: str | None
    """Reason why a finished run ended before its last planned epoch."""
    stated: Mapping[tuple[int, str], Mapping[str, float | None]]
    """Numbers in the record by epoch and variant, which the run itself computed."""
    files: Mapping[tuple[int, str], Path]
    """Files of observations by epoch and variant."""
    provenance: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    _read: dict[tuple[int, str], Sets] = field(default_factory=dict, compare=False, repr=False)

    @property
    def panel(self) -> tuple[str, Split]:
        """Model and split."""
        return self.model, self.split

    @property
    def evaluations(self) -> list[tuple[int, str]]:
        """Epochs and variants that were evaluated."""
        return sorted(self.stated)

    def observations(self, epoch: int, variant: str = PLAIN) -> Sets | None:
        """The observations of an evaluation; None if there is no file of them."""
        key = epoch, variant
        if key not in self.files:
            return None
        if key not in self._read:
            self._read[key] = read_observations(self.files[key])
        return self._read[key]


@dataclass(frozen=True)
class Folder:
    """A sweep's folder."""

    plan: Mapping[str, Any]
    records: tuple[Record, ...]
    """Those that belong to the plan; without a plan, all."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration; empty without a plan."""
        config: Mapping[str, Any] = self.plan.get("config", {})
        return config

    @property
    def runs(self) -> list[Record]:
        """The records of runs."""
        return [record for record in self.records if record.kind == "run"]

    @property
    def chosen_metrics(self) -> Mapping[str, Mapping[str, Any]]:
        """Metrics that the configuration names now, with their settings."""
        evaluation: Mapping[str, Any] = self.config.get("evaluation", {})
        chosen: Mapping[str, Mapping[str, Any]] = evaluation.get("metrics") or {}
        return chosen

    def reference(self, kind: str, panel: tuple[str, Split], variant: str) -> Record | None:
        """The start or retain model's record with a variant; None if there is none, or several."""
        found = [
            record
            for record in self.records
            if record.kind == kind and record.panel == panel and (0, variant) in record.stated
        ]
        return found[0] if len(found) == 1 else None


def read_folder(path: Path) -> Folder:
    """Read the plan and the records of a sweep's folder."""
    plan_file = path / "plan.json"
    plan = _json(plan_file) if plan_file.is_file() else {}
    places = [place for place in sorted((path / "records").iterdir()) if _is_record(place)]
    names = {place.name for place in places}
    records: list[Record] = []
    for place in places:
        id_ = place.name.partition(".")[0]
        # A failed or stopped run gives way to any other record of the same id.
        has_other = bool({id_, f"{id_}.failed", f"{id_}.stopped"} & names - {place.name})
        if place.name == id_ or not has_other:
            records.append(_record(place))
    return Folder(plan, tuple(record for record in records if _is_planned(record, plan)))


def _is_record(place: Path) -> bool:
    return place.is_dir() and not place.name.startswith(".") and place.suffix != ".damaged"


def _is_planned(record: Record, plan: Mapping[str, Any]) -> bool:
    """Whether a record belongs to the plan. Plans of version 0.2 do not name their references."""
    if not plan:
        return True
    if record.kind == "run":
        return record.id in {run["id"] for run in plan["runs"]}
    return plan.get("references") is None or record.id in plan["references"]


def _json(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text("utf-8"), object_hook=_with_special_floats)
    return document


def _with_special_floats(document: dict[str, Any]) -> Any:
    """Read `{"$float": "nan"}`, since JSON has no such number."""
    return _SPECIAL[document["$float"]] if document.keys() == {"$float"} else document


def _record(place: Path) -> Record:
    document = _json(place / "record.json")
    stated: dict[tuple[int, str], Mapping[str, float | None]] = {}
    for evaluation in [*document["epochs"], *document.get("attacked", ())]:
        stated[evaluation["epoch"], evaluation.get("variant", PLAIN)] = evaluation["metrics"]
    files: dict[tuple[int, str], Path] = {}
    for key in [*document["evaluations"], *document.get("attacked_evaluations", {})]:
        epoch, _, variant = key.partition(" ")
        name = f"epoch-{epoch}.{variant}" if variant else f"epoch-{epoch}"
        files[int(epoch), variant] = place / f"{name}.safetensors"
    return Record(
        id=document["id"],
        kind=document["kind"],
        model=document["model"],
        split=document["forget_fraction"],
        method=document["method"],
        learning_rate=document["learning_rate"],
        seed=document["seed"],
        spec=document["spec"],
        status=document["status"],
        profile=document["profile"],
        error=document.get("error"),
        ended=document.get("ended"),
        stated=stated,
        files=files,
        provenance=document["provenance"],
        steps=document["steps"],
    )


def read_observations(path: Path) -> dict[str, SetObservations]:
    """Read the file of one evaluation: the observations of each set.

    Tensors are called `<set>/<column>`. Truth values are packed into bits. All texts are one tensor
    of bytes, gzipped JSON.
    """
    tensors = load(path.read_bytes())
    texts = json.loads(gzip.decompress(tensors.pop("texts").tobytes()))
    sets: dict[str, SetObservations] = {}
    for name, of_set in texts.items():
        columns: dict[str, NDArray[Any]] = {}
        for key, values in tensors.items():
            if key.startswith(f"{name}/"):
                columns[key.removeprefix(f"{name}/")] = values
        sets[name] = _set(of_set, columns)
    return sets


def _set(texts: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> SetObservations:
    def numbers(name: str) -> Array:
        return columns[name].astype(np.float64)

    def numbers_if_there(name: str) -> Array | None:
        return numbers(name) if name in columns else None

    index = columns.get("answer_index")
    (word_rule,) = texts.get("word_rule", ["ascii"])
    return SetObservations(
        questions=texts["questions"],
        generated=texts["generated"],
        references=texts["references"],
        answer_loss=numbers("answer_loss"),
        answer_tokens=numbers("answer_tokens"),
        base_loss=numbers("base_loss"),
        perturbed_loss=numbers("perturbed_loss"),
        perturbed_tokens=numbers("perturbed_tokens"),
        rouge_l_recall=numbers("rouge_l_recall"),
        tokens=_tokens(columns),
        sample_scores=numbers_if_there("samples.rouge_l_recall"),
        options=texts.get("options", []),
        answer_index=None if index is None else index.astype(np.int64),
        compressed_bytes=numbers_if_there("compressed_bytes"),
        grad_norm=numbers_if_there("grad_norm"),
        start_loss=numbers_if_there("start_loss"),
        token_entropy=numbers_if_there("token_entropy"),
        word_rule=word_rule,
        places=columns["places"].astype(np.int64) if "places" in columns else None,
    )


def _tokens(columns: Mapping[str, NDArray[Any]]) -> TokenObservations | None:
    """The observations of tokens, cut into answers."""
    if "tokens.lengths" not in columns:
        return None
    lengths = columns["tokens.lengths"].astype(np.int64)
    places = np.cumsum(lengths)[:-1]
    total = int(lengths.sum())

    def by_answer(values: NDArray[Any]) -> list[NDArray[Any]]:
        return np.split(values, places)

    def moments(name: str) -> list[Array] | None:
        if name not in columns:
            return None
        return by_answer(columns[name].astype(np.float64))

    hits = np.unpackbits(columns["tokens.hit"], count=total).astype(np.bool_)
    has_ended = np.unpackbits(columns["tokens.ended"], count=len(lengths))
    end_counts = columns.get("tokens.end_lengths", has_ended)
    return TokenObservations(
        loss=by_answer(columns["tokens.loss"].astype(np.float64)),
        is_hit=by_answer(hits),
        end_counts=[int(count) for count in end_counts],
        mean_logprob=moments("tokens.mean_logprob"),
        logprob_variance=moments("tokens.logprob_variance"),
    )
