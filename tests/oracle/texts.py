"""Words of texts, and ROUGE-L (Lin 2004, section 3) from its definition."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache


def rouge_words(text: str, word_rule: str, *, stems: bool) -> list[str]:
    """Return the words that ROUGE compares.

    By the rule `ascii`, which the package rouge-score has, words are runs of a-z and 0-9. By
    `unicode` they are runs of letters and digits of any script; the texts here have no scripts that
    are written without spaces.

    Args:
        text: Of a reference or an answer.
        word_rule: `ascii` or `unicode`.
        stems: Whether words of more than three ASCII characters are reduced by Porter's algorithm.
    """
    if word_rule == "ascii":
        words = re.findall(r"[a-z0-9]+", text.lower())
    else:
        words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())
    if stems:
        return [_stem(word) if len(word) > 3 and word.isascii() else word for word in words]
    return words


def plain_words(text: str, word_rule: str) -> list[str]:
    """Return the words between blanks, or by the rule `unicode` those of `rouge_words`."""
    return text.split() if word_rule == "ascii" else rouge_words(text, word_rule, stems=False)


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, by the textbook's table."""
    lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, word in enumerate(first):
        for j, other in enumerate(second):
            if word == other:
                lengths[i + 1][j + 1] = lengths[i][j] + 1
            else:
                lengths[i + 1][j + 1] = max(lengths[i][j + 1], lengths[i + 1][j])
    return lengths[-1][-1]


def rouge_l_recall(reference: str, answer: str, word_rule: str = "ascii") -> float:
    """Return the common subsequence as a share of the reference's words; 0 without words."""
    wanted = rouge_words(reference, word_rule, stems=True)
    given = rouge_words(answer, word_rule, stems=True)
    return common_subsequence(wanted, given) / len(wanted) if wanted else 0.0


def rouge_l_f1(reference: str, answer: str, word_rule: str, *, stems: bool) -> float:
    """Return the harmonic mean of ROUGE-L's recall and precision; 0 if no word is shared."""
    wanted = rouge_words(reference, word_rule, stems=stems)
    given = rouge_words(answer, word_rule, stems=stems)
    shared = common_subsequence(wanted, given)
    return 2 * shared / (len(wanted) + len(given)) if shared else 0.0


def distinct_four_grams(words: Sequence[str]) -> float:
    """Return distinct 4-grams as a share of all (distinct-n of Li et al. 2016, arXiv:1510.03055).

    Fewer than four words are one gram. No word at all has 0. A word of more than 30 characters
    stands for its characters.
    """
    units = [unit for word in words for unit in (word if len(word) > 30 else (word,))]
    if not units:
        return 0.0
    grams = [tuple(units[start : start + 4]) for start in range(max(1, len(units) - 3))]
    return len(set(grams)) / len(grams)


@lru_cache(maxsize=10_000)
def _stem(word: str) -> str:
    from nltk.stem.porter import PorterStemmer  # importing it takes a second

    stem: str = PorterStemmer().stem(word)
    return stem
