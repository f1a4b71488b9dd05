"""Find the rows that an attack asked among all rows of an evaluation set.

Rows are told apart by their place in the set and never only by their text, because two rows may ask
the same question, and texts that are continued may have no question.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from unlearnbench.api.observations import IntArray, SetEvaluation


def asked_places(whole: SetEvaluation, asked: SetEvaluation) -> IntArray | None:
    """Return the places in a set of the rows that an attack asked.

    Args:
        whole: Plain evaluation of all rows of the set.
        asked: Evaluation of the same set under the attack.

    Returns:
        A place for each asked row, in their order: `[0, 2]` if the attack asked the first and the
        third row. None if the places cannot be told.
    """
    if asked.places is not None:
        # A slice of one question is empty for a place beyond the set, which then equals nothing.
        questions_there = [whole.questions[i : i + 1] for i in asked.places.tolist()]
        is_of_these_rows = questions_there == [(question,) for question in asked.questions]
        return asked.places if is_of_these_rows else None
    # Records from before places were stored have the asked rows in the order of the set.
    if asked.questions == whole.questions:
        return np.arange(row_count(whole))
    return _places_by_text(whole, asked)


def row_count(evaluation: SetEvaluation) -> int:
    """Return the number of rows of an evaluated set."""
    return len(evaluation.answer_loss)


def _places_by_text(whole: SetEvaluation, asked: SetEvaluation) -> IntArray | None:
    """Match rows by question, and rows with the same question by reference."""
    places_of_question = _indices_by_question(whole)
    places = np.full(row_count(asked), -1, np.int64)
    for question, rows in _indices_by_question(asked).items():
        candidates = places_of_question.get(question, [])
        if len(candidates) != len(rows):
            candidates = _places_by_reference(whole, candidates, asked, rows)
        if len(candidates) != len(rows):
            return None
        places[rows] = candidates
    has_found_all = (places >= 0).all()
    return places if has_found_all else None


def _indices_by_question(evaluation: SetEvaluation) -> dict[str, list[int]]:
    """Return the indices of the rows with each question, in ascending order."""
    indices: dict[str, list[int]] = defaultdict(list)
    for index, question in enumerate(evaluation.questions):
        indices[question].append(index)
    return indices


def _places_by_reference(
    whole: SetEvaluation, candidates: Sequence[int], asked: SetEvaluation, rows: Sequence[int]
) -> list[int]:
    """Match rows with the same question by their references.

    An attack may shorten a reference at its beginning, so that an asked row's reference is the end
    of the whole one.

    Args:
        whole: Plain evaluation of all rows.
        candidates: Places in `whole` of the rows with this question.
        asked: Evaluation under the attack.
        rows: Indices in `asked` of the rows with this question.

    Returns:
        A candidate for each row, in their order. Empty if a row has no candidate, or if other
        candidates would do as well.
    """
    if not whole.references or not asked.references:
        return []
    endings = [asked.references[row].strip() for row in rows]
    earliest = _first_matches(candidates, endings, whole.references)
    latest = _first_matches(candidates[::-1], endings[::-1], whole.references)[::-1]
    # If the earliest possible places are also the latest ones, there are no others.
    return earliest if earliest == latest else []


def _first_matches(
    candidates: Sequence[int], endings: Sequence[str], references: Sequence[str]
) -> list[int]:
    """Give each ending, in order, the next candidate whose reference ends with it.

    Returns:
        The candidates, or an empty list if one of the endings has none.
    """
    remaining = iter(candidates)
    matches: list[int] = []
    for ending in endings:
        match = next((i for i in remaining if references[i].strip().endswith(ending)), None)
        if match is None:
            return []
        matches.append(match)
    return matches
