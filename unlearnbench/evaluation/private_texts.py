"""Evaluations without the texts that they were made from (`keep_texts: false`).

What is left are numbers by row. A metric that reads texts cannot be computed from them later, so
its values are computed first and stored beside the other columns. Each has the metric's settings in
its name: if the settings change, the metric is undefined, and never that of the old settings.
"""

import zlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from unlearnbench.api.metric import Measure
from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation
from unlearnbench.base.errors import PluginError


def without_texts(evaluation: Evaluation, measures: Iterable[Measure], rows: str) -> Evaluation:
    """Return an evaluation without texts, and with the values of the metrics that read them.

    Args:
        evaluation: An evaluation. One without texts stays as it is.
        measures: The metrics that are reported.
        rows: Fingerprint of the rows. It is part of what replaces a question, so that other rows
            are not taken for these.
    """
    chosen = tuple(measures)
    sets = {
        name: seen
        if seen.text_values is not None
        else _set_without_texts(seen, [m for m in chosen if name in m.sets], rows)
        for name, seen in evaluation.sets.items()
    }
    return replace(evaluation, sets=sets)


def _set_without_texts(
    seen: SetEvaluation, measures: Iterable[Measure], rows: str
) -> SetEvaluation:
    count = len(seen.answer_loss)
    places = range(count) if seen.places is None else seen.places.tolist()
    samples = seen.samples
    if samples is not None:
        samples = replace(samples, texts=tuple(("",) * len(texts) for texts in samples.texts))
    compressed = seen.compressed_bytes
    if compressed is None and len(seen.references) == count:
        sizes = [len(zlib.compress(t.encode(errors="surrogatepass"))) for t in seen.references]
        compressed = np.array(sizes, dtype=np.int64)
    plain = replace(
        seen,
        questions=tuple(f"row {place + 1} of {rows}" for place in places) if seen.questions else (),
        generated=(),
        references=(),
        options=(),
        samples=samples,
        compressed_bytes=compressed,
        text_values={},
    )
    values: dict[str, FloatArray] = {}
    for measure in measures:
        known = _values(measure, seen)
        if known is not None and not _are_equal(known, _values(measure, plain)):
            values[measure.key] = known
    return replace(plain, text_values=values)


def _values(measure: Measure, seen: SetEvaluation) -> FloatArray | None:
    """The values of a metric; None if it cannot be computed, or fails without the texts."""
    try:
        return measure.per_example(seen)
    except PluginError:  # the summary says so, which computes the metric, too
        return None


def _are_equal(values: FloatArray, others: FloatArray | None) -> bool:
    return others is not None and np.array_equal(values, others, equal_nan=True)
