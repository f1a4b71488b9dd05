"""An evaluation as one file: the observations of every set, as safetensors.

A tensor is named by its set and column, for example `forget/answer_loss` or `forget/tokens.loss`.
Token counts are stored in 32 bits, truth values as single bits. All texts are in one tensor of
bytes, `texts`: gzipped JSON with the lists of each set. The observations of TOFU's forget10 with
its tokens take less than 1 MB that way. The header has the profile and the precision.

Some things are not in every file. Sampled answers are only in files of evaluations that have them.
Token ids of greedy answers are never stored, because they only save time. If texts are not kept
(`keep_texts: false`), questions are called `row 3 of <fingerprint>`, and the values of the metrics
that read texts are columns (`text_values`).
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
    FloatArray,
    Samples,
    SetEvaluation,
    SetName,
)
from unlearnbench.base.errors import EvaluationError
from unlearnbench.base.outputs import writing

SUFFIX = ".safetensors"

# Fields of a `SetEvaluation`, by how they are stored
_TEXTS = ("questions", "generated", "references")
"""Lists of texts that every set has, although they may be empty."""
_LISTS = ("options", "labels")
"""Lists of several texts per question, stored if there are any."""
_SENTENCES = "sentences"
"""Another list of texts, stored if the set has it."""
_WORD_RULE = "word_rule"
_SAMPLES = "samples"
_TEXT_VALUES = "text_values"
_VALUES = "values"
_OPTIONAL_COLUMNS = frozenset({"answer_index", "compressed_bytes", "places", *EXTRA})
"""Arrays that are stored if the set has them."""
_COLUMNS = {field.name for field in fields(SetEvaluation)} - {
    *_TEXTS,
    *_LISTS,
    _SENTENCES,
    _WORD_RULE,
    _SAMPLES,
    _TEXT_VALUES,
    _VALUES,
    "token_columns",
    *_OPTIONAL_COLUMNS,
}
"""Arrays that every set has."""

# Prefixes of the names of further columns, as in `tokens.loss`
_TOKENS = "tokens"
_OBSERVED = "observed"
_SAMPLED_ROUGE = f"{_SAMPLES}.rouge_l_recall"
_TOKEN_COLUMNS = {field.name for field in fields(AnswerTokens)} - {_OBSERVED}

_OLDEST_WORD_RULE = "ascii"
"""The rule for words of files that name none, because there was no other rule."""
_DAMAGE = (
    SafetensorError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    EOFError,
    IndexError,
    zlib.error,
)
"""Errors of the libraries on a file that is cut, changed or something else."""


def write_observations(evaluation: Evaluation, path: Path | str) -> None:
    """Write an evaluation, whole or not at all. Equal evaluations give equal bytes."""
    tensors: dict[str, NDArray[Any]] = {}
    texts: dict[str, dict[str, list[Any]]] = {}
    for set_name, evaluated in evaluation.sets.items():
        texts[set_name] = _texts_of(evaluated)
        for column, values in _columns_of(evaluated).items():
            tensors[f"{set_name}/{column}"] = _as_stored(values)
    # Without a time stamp, so that equal evaluations give equal files.
    compressed = gzip.compress(json.dumps(texts).encode(), mtime=0)
    tensors["texts"] = np.frombuffer(compressed, dtype=np.uint8)
    # Both values are in one key, because the library writes several keys in no certain order.
    header = json.dumps({"profile": evaluation.profile, "precision": evaluation.precision})
    with writing(Path(path), "the observations") as part:
        part.write_bytes(save(tensors, metadata={"evaluation": header}))


def _texts_of(evaluated: SetEvaluation) -> dict[str, list[Any]]:
    """Return the lists of a set that are stored as JSON, by field."""
    texts: dict[str, list[Any]] = {field: list(getattr(evaluated, field)) for field in _TEXTS}
    for field in _LISTS:
        lists = getattr(evaluated, field)
        if lists:
            texts[field] = list(lists)
    if evaluated.sentences:
        texts[_SENTENCES] = list(evaluated.sentences)
    if evaluated.word_rule != _OLDEST_WORD_RULE:
        texts[_WORD_RULE] = [evaluated.word_rule]
    if evaluated.samples is not None:
        texts[_SAMPLES] = [list(answers) for answers in evaluated.samples.texts]
    if evaluated.text_values is not None:
        # The list tells apart a set without such values and one whose texts were kept.
        texts[_TEXT_VALUES] = sorted(evaluated.text_values)
    return texts


def _columns_of(evaluated: SetEvaluation) -> dict[str, NDArray[Any]]:
    """Return the arrays of a set by their names in the file, without the set's name."""
    columns: dict[str, NDArray[Any]] = {
        field: getattr(evaluated, field) for field in sorted(_COLUMNS)
    }
    for field in sorted(_OPTIONAL_COLUMNS):
        values = getattr(evaluated, field)
        if values is not None:
            columns[field] = values
    columns |= _with_prefix(_VALUES, evaluated.values)
    tokens = evaluated.token_columns
    if tokens is not None:
        for field in sorted(_TOKEN_COLUMNS):
            values = getattr(tokens, field)
            if values is not None:
                columns[f"{_TOKENS}.{field}"] = values
        columns |= _with_prefix(_OBSERVED, tokens.observed)
    if evaluated.samples is not None:
        columns[_SAMPLED_ROUGE] = evaluated.samples.rouge_l_recall
    if evaluated.text_values is not None:
        columns |= _with_prefix(_TEXT_VALUES, evaluated.text_values)
    return columns


def _with_prefix(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {f"{prefix}.{name}": values for name, values in sorted(arrays.items())}


def _without_prefix(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names begin with a prefix, by the rest of their names."""
    return {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }


def read_observations(path: Path | str) -> Evaluation:
    """Read what `write_observations` wrote.

    Raises:
        EvaluationError: The file cannot be read, or is something else. The message names the file.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        # A safetensors file begins with the size of its header, in 8 bytes, and the header.
        header_size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + header_size])
        rules = json.loads(header["__metadata__"]["evaluation"])
        tensors = load(content)
        texts = json.loads(gzip.decompress(tensors.pop("texts").tobytes()))
        sets: dict[SetName, SetEvaluation] = {}
        for set_name, set_texts in texts.items():
            stored = _without_prefix(f"{set_name}/", tensors)
            columns = {name: _as_computed(values) for name, values in stored.items()}
            sets[set_name] = _set_evaluation(set_texts, columns)
        return Evaluation(rules["profile"], sets, precision=rules["precision"])
    except OSError as error:
        reason = error.strerror or str(error)
        raise EvaluationError(f"{path}: cannot read the observations: {reason}") from error
    except _DAMAGE as error:
        raise EvaluationError(
            f"{path}: not the observations of an evaluation, or damaged ({error}); evaluate again"
        ) from error


def _as_stored(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the smaller type in which it is stored."""
    if values.dtype == np.bool_:
        return np.packbits(values)
    return np.ascontiguousarray(values, dtype=np.int32 if values.dtype == np.int64 else None)


def _as_computed(values: NDArray[Any]) -> NDArray[Any]:
    """Return a stored array in the type that it had. Bits need their number, see `_tokens`."""
    return values.astype(np.int64) if values.dtype == np.int32 else values


def _set_evaluation(
    texts: Mapping[str, list[Any]], columns: Mapping[str, NDArray[Any]]
) -> SetEvaluation:
    """Return a set from its texts, by field, and its arrays, by column."""
    stored: dict[str, Any] = {field: tuple(texts[field]) for field in _TEXTS}
    stored |= {field: columns[field] for field in _COLUMNS}
    stored |= {field: columns[field] for field in _OPTIONAL_COLUMNS if field in columns}
    for field in _LISTS:
        if field in texts:
            stored[field] = tuple(map(tuple, texts[field]))
    if _SENTENCES in texts:
        stored[_SENTENCES] = tuple(texts[_SENTENCES])
    (word_rule,) = texts.get(_WORD_RULE, [_OLDEST_WORD_RULE])
    samples: Samples | None = None
    if _SAMPLES in texts:
        samples = Samples(tuple(map(tuple, texts[_SAMPLES])), columns[_SAMPLED_ROUGE])
    text_values: dict[str, FloatArray] | None = None
    if _TEXT_VALUES in texts:
        text_values = _without_prefix(f"{_TEXT_VALUES}.", columns)
    return SetEvaluation(
        **stored,
        word_rule=word_rule,
        token_columns=_tokens(columns),
        samples=samples,
        values=_without_prefix(f"{_VALUES}.", columns),
        text_values=text_values,
    )


def _tokens(columns: Mapping[str, NDArray[Any]]) -> AnswerTokens | None:
    """Return the tokens of the true answers; None if the set has none."""
    tokens = _without_prefix(f"{_TOKENS}.", columns)
    if not tokens:
        return None
    answer_count = len(tokens["lengths"])
    token_count = int(tokens["lengths"].sum())
    bit_counts = {"ended": answer_count, "hit": token_count, "tied": token_count}
    for column, count in bit_counts.items():
        tokens[column] = np.unpackbits(tokens[column], count=count).astype(np.bool_)
    return AnswerTokens(**tokens, observed=_without_prefix(f"{_OBSERVED}.", columns))
