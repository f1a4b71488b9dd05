"""Evaluations without the texts that they were made from (`keep_texts: false`).

Only numbers by row are left. A metric that reads texts cannot be computed from them later, so its
values are computed first and stored together with the other columns. The name of such a column
contains the metric's settings. If the settings change later, there is no column for them: the
metric is then undefined, and never shows values of the old settings.
"""

import zlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from unlearnbench.api.metric import Measure
from unlearnbench.api.observations import Evaluation, FloatArray, IntArray, SetEvaluation, SetName
from unlearnbench.base.errors import PluginError


def without_texts(evaluation: Evaluation, measures: Iterable[Measure], rows: str) -> Evaluation:
    """Return an evaluation without texts, and with the values of the metrics that read them.

    Args:
        evaluation: An evaluation. One without texts stays as it is.
        measures: The metrics that are reported.
        rows: Fingerprint of the rows. It is part of what replaces a question, so that other rows
            are not taken for these.
    """
    measures = tuple(measures)
    sets: dict[SetName, SetEvaluation] = {}
    for name, evaluated in evaluation.sets.items():
        if evaluated.text_values is None:
            of_set = [measure for measure in measures if name in measure.sets]
            evaluated = _set_without_texts(evaluated, of_set, rows)
        sets[name] = evaluated
    return replace(evaluation, sets=sets)


def _set_without_texts(
    evaluated: SetEvaluation, measures: Iterable[Measure], rows: str
) -> SetEvaluation:
    """Return a set without texts, see `without_texts`. Its metrics are `measures`."""
    questions: tuple[str, ...] = ()
    if evaluated.questions:
        places = evaluated.places
        indices = range(len(evaluated.answer_loss)) if places is None else places.tolist()
        questions = tuple(f"row {index + 1} of {rows}" for index in indices)
    samples = evaluated.samples
    if samples is not None:
        # The numbers of answers are kept, because metrics of sampled answers read them.
        samples = replace(samples, texts=tuple(("",) * len(texts) for texts in samples.texts))
    bare = replace(
        evaluated,
        questions=questions,
        generated=(),
        references=(),
        sentences=(),
        options=(),
        samples=samples,
        compressed_bytes=_compressed_bytes(evaluated),
        text_values={},
    )
    # A metric reads texts if its values change without them.
    text_values: dict[str, FloatArray] = {}
    for measure in measures:
        values = _values(measure, evaluated)
        if values is not None and not _are_equal(values, _values(measure, bare)):
            text_values[measure.key] = values
    return replace(bare, text_values=text_values)


def _compressed_bytes(evaluated: SetEvaluation) -> IntArray | None:
    """Return the sizes [n] of the true answers after zlib; None if the texts are not known."""
    known = evaluated.compressed_bytes
    if known is not None or len(evaluated.references) != len(evaluated.answer_loss):
        return known
    sizes = [
        len(zlib.compress(reference.encode(errors="surrogatepass")))
        for reference in evaluated.references
    ]
    return np.array(sizes, dtype=np.int64)


def _values(measure: Measure, evaluated: SetEvaluation) -> FloatArray | None:
    """Return the values [n] of a metric; None if it cannot be computed, or fails."""
    try:
        return measure.per_example(evaluated)
    except PluginError:  # the summary computes the metric, too, and reports the error
        return None


def _are_equal(values: FloatArray, others: FloatArray | None) -> bool:
    return others is not None and np.array_equal(values, others, equal_nan=True)
