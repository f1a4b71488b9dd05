"""How alike texts are by the words that they share."""

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from unlearnbench.stats.words import unicode_words


class WordIndex:
    """Texts by their words, in which the texts that are most like another text are found.

    s(x, y) = Σ_w u_w(x) · u_w(y),  u_w(x) = n_w(x) · i_w / ‖n(x) · i‖,  i_w = log(1 + N / N_w)

    s     cosine similarity, from 0 (no word in common) to 1 (the same words as often)
    n_w   number of times that word w is in a text
    N     number of texts in the index
    N_w   number of these texts that contain w; at least 1
    """

    def __init__(self, texts: Sequence[str]) -> None:
        """Count the words of all texts."""
        self.size = len(texts)
        counts_of_texts = [Counter(unicode_words(text)) for text in texts]
        self._texts_with: Counter[str] = Counter()
        for counts in counts_of_texts:
            self._texts_with.update(counts.keys())
        self._postings: dict[str, list[tuple[int, float]]] = {}
        """For each word, the index of each text that contains it, with the word's weight u_w."""
        for index, counts in enumerate(counts_of_texts):
            for word, weight in self._weights(counts).items():
                self._postings.setdefault(word, []).append((index, weight))

    def _weights(self, counts: Counter[str]) -> dict[str, float]:
        """Return u_w by word for a text with these counts."""
        weights: dict[str, float] = {}
        for word, count in counts.items():
            weights[word] = count * math.log(1 + self.size / max(self._texts_with[word], 1))
        norm = math.sqrt(math.fsum(weight * weight for weight in weights.values()))
        return {word: weight / norm for word, weight in weights.items()}

    def similarities(self, text: str) -> dict[int, float]:
        """Return how alike a text and each text of the index are, by index.

        Texts without a word in common are left out.
        """
        if not self.size:
            return {}  # without texts, the weight of every word is 0
        similarity_of_text: dict[int, float] = {}
        for word, weight in self._weights(Counter(unicode_words(text))).items():
            for index, other_weight in self._postings.get(word, ()):
                product = weight * other_weight
                similarity_of_text[index] = similarity_of_text.get(index, 0.0) + product
        return similarity_of_text

    def most_alike(self, texts: Sequence[str]) -> Iterator[int]:
        """Yield the index of each text once, the most alike one first.

        Args:
            texts: The texts to compare with. The most alike of them counts. Of texts that are
                equally alike, the first one of the index comes first.
        """
        best: dict[int, float] = {}
        for text in texts:
            for index, similarity in self.similarities(text).items():
                best[index] = max(similarity, best.get(index, 0.0))
        # Few are asked for, so they are not all sorted. Rounding keeps equal texts equal, whatever
        # the order in which their words were added.
        heap = [(-round(similarity, 9), index) for index, similarity in best.items()]
        heapq.heapify(heap)
        while heap:
            _, index = heapq.heappop(heap)
            yield index
        for index in range(self.size):
            if index not in best:
                yield index
