"""ROUGE: words that a generated answer shares with the true one.

Recall does not punish an answer for continuing after the content of the reference.

A `WordRule` says what a word is. `ascii` is the rule of each metric's source. For ROUGE-1 and
ROUGE-L that is rouge_score, which counts runs of a-z and 0-9, so that a text in another script has
no words. `unicode` counts words of all scripts (`stats/words.py`), for every metric.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec, module_from_spec
from typing import Any, Literal

import numpy as np

from unlearnbench.base.errors import EvaluationError
from unlearnbench.stats import FloatArray

WordRule = Literal["ascii", "unicode"]
_LONGEST_UNSTEMMED = 3
"""Letters of the longest word that rouge_score does not stem."""


def rouge_recall(
    references: Sequence[str], predictions: Sequence[str], *, word_rule: WordRule = "ascii"
) -> tuple[FloatArray, FloatArray]:
    """Compute the recall of each of n predictions against its reference.

    The Porter stemmer is applied to English words.

    Returns:
        ROUGE-1 recalls [n] and ROUGE-L recalls [n].
    """
    overlaps = _overlaps(references, predictions, word_rule)
    words = np.maximum(overlaps[:, 0], 1)
    return overlaps[:, 2] / words, overlaps[:, 3] / words


def rouge_l_f1(
    references: Sequence[str],
    predictions: Sequence[str],
    *,
    stemmer: bool = True,
    word_rule: WordRule = "ascii",
) -> FloatArray:
    """Compute ROUGE-L F1 [n], the harmonic mean of recall and precision; 0 if no word is shared."""
    overlaps = _overlaps(references, predictions, word_rule, stemmer=stemmer)
    scores: FloatArray = 2 * overlaps[:, 3] / np.maximum(overlaps[:, 0] + overlaps[:, 1], 1)
    return scores


def _overlaps(
    references: Sequence[str],
    predictions: Sequence[str],
    word_rule: WordRule,
    *,
    stemmer: bool = True,
) -> FloatArray:
    """Count the words of each pair: in the reference, the prediction, both, and both in order.

    Returns:
        Counts [n, 4].

    Raises:
        EvaluationError: If the numbers of references and predictions differ.
    """
    if len(references) != len(predictions):
        raise EvaluationError(
            f"ROUGE: {len(references)} references and {len(predictions)} generated answers; "
            "each answer needs its reference"
        )
    pairs = zip(references, predictions, strict=True)
    rows = [_overlap(*pair, stemmer, word_rule) for pair in pairs]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


# Workers score the same answers repeatedly: those that unlearning does not change (facts, retain
# rows) are identical to the epoch before. 16384 pairs are about 10 MB.
@lru_cache(maxsize=16384)
def _overlap(
    reference: str, prediction: str, stemmer: bool, word_rule: WordRule
) -> tuple[int, int, int, int]:
    wanted = rouge_words(reference, word_rule, stemmer=stemmer)
    result = rouge_words(prediction, word_rule, stemmer=stemmer)
    shared = (Counter(wanted) & Counter(result)).total()
    return len(wanted), len(result), shared, _longest_common_subsequence(wanted, result)


def rouge_words(text: str, word_rule: WordRule, *, stemmer: bool = True) -> Sequence[str]:
    """Return the words of a text that ROUGE compares, in their order.

    Args:
        text: The text.
        word_rule: What a word is.
        stemmer: Whether to reduce words of ASCII letters and digits to their stems.
    """
    if word_rule == "ascii":
        from rouge_score.tokenize import tokenize

        words: list[str] = tokenize(text, _stemmer() if stemmer else None)
        return words

    from unlearnbench.stats.words import unicode_words

    if not stemmer:
        return unicode_words(text)
    stem = _stemmer().stem
    # rouge_score leaves short words as they are. Porter's rules apply only to English.
    return [
        stem(word) if word.isascii() and len(word) > _LONGEST_UNSTEMMED else word
        for word in unicode_words(text)
    ]


def _longest_common_subsequence(words: Sequence[str], other: Sequence[str]) -> int:
    """Compute the length of the longest common subsequence.

    The bit-parallel algorithm of Hyyrö (2004) stores a row of the table as the bits of a number.
    """
    places: dict[str, int] = {}
    for i, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << i
    row = whole = (1 << len(words)) - 1
    for word in other:
        matches = row & places.get(word, 0)
        row = (row + matches | row - matches) & whole
    return len(words) - row.bit_count()


def union_recall(reference: str, prediction: str, *, word_rule: WordRule = "ascii") -> float:
    """Compute ROUGE-L recall of distinct words, as the package `rouge` 1.0.1 does by default.

    It is the fraction of the reference's words that are in the longest common subsequence of one of
    the reference's sentences and one of the prediction's. By `ascii`, words end at blanks and
    sentences at full stops. By `unicode`, they end as in `stats/words.py`, and words are stemmed.
    """
    wanted, given = (_sentences(text, word_rule) for text in (reference, prediction))
    shared = {word for a in wanted for b in given for word in _common_words(a, b)}
    words = {word for sentence in wanted for word in sentence}
    return len(shared) / max(len(words), 1)


def _sentences(text: str, word_rule: WordRule) -> list[Sequence[str]]:
    """Return the words of each sentence of a text."""
    if word_rule == "ascii":
        return [" ".join(part.split()).split(" ") for part in text.split(".") if part]

    from unlearnbench.stats.words import unicode_sentences

    return [rouge_words(sentence, word_rule) for sentence in unicode_sentences(text)]


def plain_words(text: str, word_rule: WordRule) -> Sequence[str]:
    """Return the unstemmed words of a text in their order: by `ascii` what is between blanks."""
    if word_rule == "ascii":
        return text.split()

    from unlearnbench.stats.words import unicode_words

    return unicode_words(text)


def matched_form(text: str, word_rule: WordRule) -> str:
    """Return the form in which whole answers are compared: without outer blanks and case."""
    if word_rule == "ascii":
        return text.strip().lower()

    from unlearnbench.stats.words import normalised

    return normalised(text).strip()


def _common_words(words: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return the words of a longest common subsequence, from the last one to the first.

    If there are several such subsequences, it is the one that the package `rouge` finds.
    """
    lengths = [[0] * (len(other) + 1) for _ in range(len(words) + 1)]
    for i, word in enumerate(words):
        for j, candidate in enumerate(other):
            longer = max(lengths[i][j + 1], lengths[i + 1][j])
            lengths[i + 1][j + 1] = lengths[i][j] + 1 if word == candidate else longer
    common: list[str] = []
    i, j = len(words), len(other)
    while i and j:
        if words[i - 1] == other[j - 1]:
            common.append(words[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return common


@cache
def _stemmer() -> Any:
    """Load nltk's Porter stemmer without the rest of nltk, whose import takes over a second."""
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
