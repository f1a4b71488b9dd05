"""An evaluation as one file: the observations of every set, as safetensors.

Tensors are named `<set>/<column>`; token counts are stored in 32 bits, truth values as single ones.
All texts are one tensor of bytes, `texts`: gzipped JSON with the lists of each set. So TOFU's
forget10 with its tokens is less than 1 MB. Sampled answers are only in files of evaluations that
have them. The header has the profile and the precision. Greedy
answers' token ids are not stored: they only save time. If texts are not kept, questions are called
`row 3 of <fingerprint>`, and values of the metrics that read texts are columns (`text_values`).
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from unlearnbench.api.metric import EXTRA
from unlearnbench.api.observations import (
    AnswerTokens,
    Evaluation,
    Samples,
    SetEvaluation,
    SetName,
)
from unlearnbench.base.errors import EvaluationError
from unlearnbench.base.outputs import writing

SUFFIX = ".safetensors"
_TEXTS = ("questions", "generated", "references")
_TOKENS, _VALUES, _SAMPLES, _OBSERVED = "tokens", "values", "samples", "observed"
_WORD_RULE, _TEXT_VALUES = "word_rule", "text_values"
_LISTS = ("options", "labels")
_IF_THERE = {"answer_index", "compressed_bytes", "places", *EXTRA}
_APART = {
    *(*_TEXTS, *_LISTS, "token_columns", "values", "samples", _WORD_RULE, _TEXT_VALUES),
    *_IF_THERE,
}
_COLUMNS = {f.name for f in fields(SetEvaluation)} - _APART
_TOKEN_COLUMNS = {f.name for f in fields(AnswerTokens)} - {_OBSERVED}
_DAMAGE = (
    *(SafetensorError, KeyError, TypeError, ValueError, AttributeError, EOFError),
    *(IndexError, zlib.error),
)


def write_observations(evaluation: Evaluation, path: Path | str) -> None:
    """Write `evaluation`, whole or not at all. Same evaluation, same bytes."""
    tensors: dict[str, NDArray[Any]] = {}
    texts: dict[str, dict[str, list[Any]]] = {}
    for name, seen in evaluation.sets.items():
        texts[name] = {key: list(getattr(seen, key)) for key in _TEXTS}
        texts[name] |= {key: list(value) for key in _LISTS if (value := getattr(seen, key))}
        if seen.word_rule != "ascii":  # as in files of versions that had no other rule
            texts[name][_WORD_RULE] = [seen.word_rule]
        columns: dict[str, Any] = {key: getattr(seen, key) for key in sorted(_COLUMNS)}
        columns |= {key: v for key in sorted(_IF_THERE) if (v := getattr(seen, key)) is not None}
        columns |= {f"{_VALUES}.{key}": value for key, value in sorted(seen.values.items())}
        if seen.token_columns is not None:
            subset = {key: getattr(seen.token_columns, key) for key in sorted(_TOKEN_COLUMNS)}
            columns |= {f"{_TOKENS}.{k}": value for k, value in subset.items() if value is not None}
            observed = sorted(seen.token_columns.observed.items())
            columns |= {f"{_OBSERVED}.{key}": value for key, value in observed}
        if seen.samples is not None:
            texts[name][_SAMPLES] = [list(subset) for subset in seen.samples.texts]
            columns[f"{_SAMPLES}.rouge_l_recall"] = seen.samples.rouge_l_recall
        if seen.text_values is not None:
            texts[name][_TEXT_VALUES] = sorted(seen.text_values)
            columns |= {f"{_TEXT_VALUES}.{k}": value for k, value in seen.text_values.items()}
        tensors |= {f"{name}/{key}": _small(value) for key, value in columns.items()}
    # Without a time stamp, so that equal evaluations are equal files.
    text = gzip.compress(json.dumps(texts).encode(), mtime=0)
    tensors["texts"] = np.frombuffer(text, dtype=np.uint8)
    # One key: the library writes several in no certain order.
    rules = json.dumps({"profile": evaluation.profile, "precision": evaluation.precision})
    with writing(Path(path), "the observations") as part:
        part.write_bytes(save(tensors, metadata={"evaluation": rules}))


def read_observations(path: Path | str) -> Evaluation:
    """Read what `write_observations` wrote. Raises: EvaluationError that names the file."""
    path = Path(path)
    try:
        content = path.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        rules = json.loads(header["__metadata__"]["evaluation"])
        tensors = load(content)
        texts = json.loads(gzip.decompress(tensors.pop("texts").tobytes()))
        sets: dict[SetName, SetEvaluation] = {
            name: _set(text, _columns_of(name, tensors)) for name, text in texts.items()
        }
        return Evaluation(rules["profile"], sets, precision=rules["precision"])
    except OSError as error:
        reason = error.strerror or str(error)
        raise EvaluationError(f"{path}: cannot read the observations: {reason}") from error
    except _DAMAGE as error:
        raise EvaluationError(
            f"{path}: not the observations of an evaluation, or damaged ({error}); evaluate again"
        ) from error


def _small(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype == np.bool_:
        return np.packbits(values)
    return np.ascontiguousarray(values, dtype=np.int32 if values.dtype == np.int64 else None)


def _whole(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.int64) if values.dtype == np.int32 else values


def _columns_of(name: str, tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    part = f"{name}/"
    return {key.removeprefix(part): _whole(v) for key, v in tensors.items() if key.startswith(part)}


def _set(texts: Mapping[str, list[Any]], columns: Mapping[str, NDArray[Any]]) -> SetEvaluation:
    def part(start: str) -> dict[str, NDArray[Any]]:
        return {k.removeprefix(start): v for k, v in columns.items() if k.startswith(start)}

    tokens = part(f"{_TOKENS}.")
    if tokens:
        total = int(tokens["lengths"].sum())
        for key, count in (("ended", len(tokens["lengths"])), ("hit", total), ("tied", total)):
            tokens[key] = np.unpackbits(tokens[key], count=count).astype(np.bool_)
    known: dict[str, Any] = {key: tuple(texts[key]) for key in _TEXTS}
    known |= {key: columns[key] for key in _COLUMNS}
    known |= {key: columns[key] for key in _IF_THERE & columns.keys()}
    known |= {key: tuple(map(tuple, texts[key])) for key in _LISTS if key in texts}
    (known["word_rule"],) = texts.get(_WORD_RULE, ["ascii"])
    samples = None
    if _SAMPLES in texts:
        rouge = columns[f"{_SAMPLES}.rouge_l_recall"]
        samples = Samples(tuple(map(tuple, texts[_SAMPLES])), rouge)
    return SetEvaluation(
        **known,
        token_columns=AnswerTokens(**tokens, observed=part(f"{_OBSERVED}.")) if tokens else None,
        samples=samples,
        values=part(f"{_VALUES}."),
        text_values=part(f"{_TEXT_VALUES}.") if _TEXT_VALUES in texts else None,
    )
