"""What is said about rows that are cut, or that one request forgets and the next one retains.

A plan says it about a user's own rows, before a model is loaded. Of other rows, and of models that
are built here with their tokenizer, training itself counts the rows that it cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from unlearnbench.api.benchmark import Dataset, Question
from unlearnbench.base.errors import ModelError
from unlearnbench.benchmarks.own_rows import OwnRows
from unlearnbench.benchmarks.read_tables import counted, row_key
from unlearnbench.config.schema import SweepConfig
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import context_length
from unlearnbench.models.source import UnreachableError
from unlearnbench.models.token_row import Row
from unlearnbench.runs.model_sources import ModelSources

TOKENISED = 500
"""Most rows whose tokens are counted: those with the longest texts."""


def check_conversations(models: ModelSources) -> None:
    """Check that a model's template renders what rows have in front of their questions.

    Raises:
        ModelError: If it has no system messages, or no earlier turns, and rows have them.
    """
    rows = [
        row
        for row in models.benchmark.full
        if row.format == "chat" and (row.system is not None or row.examples)
    ]
    if not rows:
        return
    template = models.template
    for row in rows:
        template.of(row).prompt(row.question, row.examples)


def row_warnings(
    config: SweepConfig, benchmark: Dataset, models: Sequence[ModelSources]
) -> Iterator[str]:
    """Yield a line for each thing about a user's own rows that makes numbers mean less."""
    if not isinstance(config.data, OwnRows):
        return
    yield from _sequence_warnings(config, benchmark)
    rows = tuple(
        dict.fromkeys(
            row for split in benchmark.splits.values() for row in (*split.forget, *split.retain)
        )
    )
    for sources in models:
        # A hub that cannot be reached, or a tokenizer that is built here, counts nothing now.
        with suppress(UnreachableError, ModelError):
            yield from _length_warnings(sources, rows, config.training.max_length)


def _sequence_warnings(config: SweepConfig, benchmark: Dataset) -> Iterator[str]:
    """Yield a line if a request retains what an earlier one has forgotten."""
    if config.requests != "in-sequence":
        return
    forgotten: dict[object, str] = {}
    for key in config.split_keys:
        split = benchmark.splits[key]
        learned_again = [row for row in split.retain if row_key(row) in forgotten]
        if learned_again:
            first = learned_again[0]
            before = forgotten[row_key(first)]
            count = counted(len(learned_again), "retain row", "retain rows")
            yield (
                f"requests: in-sequence: {count} of {split.name} would teach again what {before} "
                f"forgets, such as {first.place}; name retain rows by split, as in retain: "
                f"{{{before}: …, {split.name}: …}}"
            )
        forgotten |= {row_key(row): split.name for row in split.forget}


def _length_warnings(models: ModelSources, rows: Sequence[Question], most: int) -> Iterator[str]:
    """Yield a line if rows are longer than what is trained on, or than the model's context."""
    if models.is_tiny:
        return
    # Few tokens are shorter than a byte, so that short texts need not be read as tokens.
    longest = sorted(rows, key=_bytes, reverse=True)[:TOKENISED]
    candidates = [row for row in longest if _bytes(row) > most // 2]
    if not candidates:
        return
    encoder = models.encoder(most)
    counts = [(encoder.length(row), row) for row in candidates]
    too_long = [(count, row) for count, row in counts if count > most]
    if not too_long:
        return
    tokens, row = max(too_long, key=lambda pair: pair[0])
    are_all = len(too_long) == len(candidates) == TOKENISED
    number = f"{'at least ' if are_all else ''}{len(too_long)} of {len(rows)} rows"
    context = context_length(models.start_config)
    reads = "" if context is None else f", and evaluations behind the model's context of {context}"
    yield (
        f"{models.settings.name}: {number} are longer than training.max_length ({most} tokens), "
        f"the longest, {row.place}, has {tokens}: training cuts them there, so that the rest is "
        f"neither learned nor unlearned{reads}; divide these texts, or raise training.max_length"
    )


def cut_warning(
    where: str,
    rows: Sequence[Row],
    questions: Sequence[Question],
    encoder: Encoder,
    setting: str,
) -> str | None:
    """Return a line about rows that training cuts; None if all of them are whole.

    Args:
        where: Model, and split if the rows are of one.
        rows: The rows as tokens.
        questions: The same rows as texts.
        encoder: What has made the tokens.
        setting: Name of the setting that bounds them: `training.max_length`.
    """
    cut = [question for row, question in zip(rows, questions, strict=True) if row.cut]
    if not cut:
        return None
    longest = sorted(cut, key=_bytes, reverse=True)[:TOKENISED]
    tokens, row = max(((encoder.length(row), row) for row in longest), key=lambda pair: pair[0])
    place = f", {row.place}," if row.place else ""
    return (
        f"{where}: {len(cut)} of {len(rows)} rows are longer than {setting} "
        f"({encoder.max_length} tokens), the longest{place} has {tokens}: they are cut there, and "
        f"the rest is not trained on; raise {setting}, or divide these texts"
    )


def _bytes(row: Question) -> int:
    """Return the size of all texts of a row that a model reads."""
    context = (text for example in row.examples for text in example)
    texts = (row.question, row.answer, row.system or "", *context)
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)
