"""Similarity of texts by their words, compared with the definition on dense vectors."""

import math
import random

import numpy as np
import pytest

from unlearnbench.stats.word_similarity import WordIndex

WORDS = ["ada", "ben", "born", "in", "lima", "quito", "where", "wrote", "the", "novel", "moon"]


def dense_similarities(texts: list[str], text: str) -> list[float]:
    """The cosine of tf-idf vectors over all words, as the definition has it."""
    vocabulary = sorted({word for one in (*texts, text) for word in one.split()})
    counts = np.array([[one.split().count(word) for word in vocabulary] for one in (*texts, text)])
    texts_with = np.maximum((counts[:-1] > 0).sum(0), 1)
    weighted = counts * np.log(1 + len(texts) / texts_with)
    unit = weighted / np.linalg.norm(weighted, axis=1, keepdims=True)
    return list(unit[:-1] @ unit[-1])


def test_similarities_are_cosines_of_weighted_counts() -> None:
    rng = random.Random(0)
    for _ in range(200):
        texts = [
            " ".join(rng.choices(WORDS, k=rng.randint(1, 8))) for _ in range(rng.randint(1, 9))
        ]
        text = " ".join(rng.choices([*WORDS, "unseen"], k=rng.randint(1, 8)))
        found = WordIndex(texts).similarities(text)
        expected = dense_similarities(texts, text)
        for index, value in enumerate(expected):
            assert found.get(index, 0.0) == pytest.approx(value, abs=1e-12)


def test_every_text_comes_once_and_the_most_alike_one_first() -> None:
    index = WordIndex(["Where was Ada born?", "Who is Ben?", "Where was Ben born?", ""])
    assert [*index.most_alike(["where was BEN born"])] == [2, 0, 1, 3]
    assert [*index.most_alike(["nothing of this"])] == [0, 1, 2, 3]
    # The more alike of two texts counts.
    assert next(index.most_alike(["nothing of this", "Who is Ben"])) == 1
    assert [*WordIndex([]).most_alike(["Ada"])] == []


def test_rare_words_count_more_than_frequent_ones() -> None:
    index = WordIndex(["where was the author born", "zanzibar", "where was", "where was the"])
    similarity = index.similarities("where zanzibar")
    assert similarity[1] > similarity[2]
    weight = math.log(1 + 4 / 1)
    other = math.log(1 + 4 / 3)
    assert similarity[1] == pytest.approx(weight / math.hypot(weight, other))
