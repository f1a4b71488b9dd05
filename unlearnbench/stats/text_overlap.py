"""ROUGE as TOFU counts it: the words of rouge_score with the Porter stemmer.

Recall does not punish an answer for continuing after the content of the reference.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec, module_from_spec
from typing import Any

import numpy as np

from unlearnbench.base.errors import EvaluationError
from unlearnbench.stats import FloatArray


def rouge_recall(
    references: Sequence[str], predictions: Sequence[str]
) -> tuple[FloatArray, FloatArray]:
    """([n] ROUGE-1 recall, [n] ROUGE-L recall) of each prediction against its reference."""
    overlaps = _overlaps(references, predictions)
    words = np.maximum(overlaps[:, 0], 1)
    return overlaps[:, 2] / words, overlaps[:, 3] / words


def rouge_l_f1(
    references: Sequence[str], predictions: Sequence[str], *, stemmer: bool = True
) -> FloatArray:
    """[n] ROUGE-L F1, the harmonic mean of recall and precision; 0 where no word is shared."""
    overlaps = _overlaps(references, predictions, stemmer=stemmer)
    scores: FloatArray = 2 * overlaps[:, 3] / np.maximum(overlaps[:, 0] + overlaps[:, 1], 1)
    return scores


def _overlaps(
    references: Sequence[str], predictions: Sequence[str], *, stemmer: bool = True
) -> FloatArray:
    """[n, 4] words of the reference, of the prediction, shared, and shared in order."""
    if len(references) != len(predictions):
        raise EvaluationError(
            f"ROUGE: {len(references)} references and {len(predictions)} generated answers; "
            "each answer needs its reference"
        )
    rows = [_overlap(*pair, stemmer) for pair in zip(references, predictions, strict=True)]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


# Workers score the same answers repeatedly: those that unlearning does not change (facts, retain
# rows) are identical to the epoch before. 16384 pairs are about 10 MB.
@lru_cache(maxsize=16384)
def _overlap(reference: str, prediction: str, stemmer: bool) -> tuple[int, int, int, int]:
    from rouge_score.tokenize import tokenize

    stem = _stemmer() if stemmer else None
    wanted: list[str] = tokenize(reference, stem)
    result: list[str] = tokenize(prediction, stem)
    shared = (Counter(wanted) & Counter(result)).total()
    return len(wanted), len(result), shared, _longest_common_subsequence(wanted, result)


def _longest_common_subsequence(item: Sequence[str], other: Sequence[str]) -> int:
    """Its length, by the bit-parallel algorithm of Hyyrö (2004): a row of the table is a number."""
    places: dict[str, int] = {}
    for i, word in enumerate(item):
        places[word] = places.get(word, 0) | 1 << i
    row = whole = (1 << len(item)) - 1
    for word in other:
        matches = row & places.get(word, 0)
        row = (row + matches | row - matches) & whole
    return len(item) - row.bit_count()


def union_recall(reference: str, prediction: str) -> float:
    """ROUGE-L recall of distinct words, as the package `rouge` 1.0.1 computes it by default.

    The share of the reference's words that are in the longest common subsequence of one of its
    sentences with one of the prediction's. Words end at blanks, sentences at full stops.
    """
    wanted, given = (
        [" ".join(part.split()).split(" ") for part in text.split(".") if part]
        for text in (reference, prediction)
    )
    shared = {word for a in wanted for b in given for word in _common_words(a, b)}
    words = {word for sentence in wanted for word in sentence}
    return len(shared) / max(len(words), 1)


def _common_words(item: Sequence[str], other: Sequence[str]) -> list[str]:
    """The words of one longest common subsequence: of several, the one that the package finds."""
    lengths = [[0] * (len(other) + 1) for _ in range(len(item) + 1)]
    for i, word in enumerate(item):
        for j, candidate in enumerate(other):
            longer = max(lengths[i][j + 1], lengths[i + 1][j])
            lengths[i + 1][j + 1] = lengths[i][j] + 1 if word == candidate else longer
    result: list[str] = []
    i, j = len(item), len(other)
    while i and j:
        if item[i - 1] == other[j - 1]:
            result.append(item[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return result


@cache
def _stemmer() -> Any:
    """The Porter stemmer of nltk, without what importing all of nltk would load (over a second)."""
    packages = [name for name in ("nltk", "nltk.stem") if name not in sys.modules]
    before = set(sys.modules)
    for name in packages:
        if spec := find_spec(name):
            sys.modules[name] = module_from_spec(spec)  # not executed: it only finds its modules
    try:
        from nltk.stem.porter import PorterStemmer
    finally:
        for name in [n for n in sys.modules if n.partition(".")[0] == "nltk" and n not in before]:
            del sys.modules[name]  # a later import loads nltk as a whole
    stemmer: Any = PorterStemmer()
    stemmer.stem = lru_cache(maxsize=16384)(stemmer.stem)
    return stemmer
