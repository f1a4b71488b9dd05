"""Warnings about rows that are cut, or that one request forgets and a later one retains.

A plan warns of a user's own rows, before a model is loaded. Training warns of all other rows, and
of models that are built here, because their tokenizers do not exist earlier.
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
"""Largest number of rows whose tokens are counted. They are those with the longest texts."""


def check_conversations(models: ModelSources) -> None:
    """Check that a model's template has a place for system messages and earlier turns of rows.

    Raises:
        ModelError: Rows have system messages or earlier turns, and the template has none.
    """
    conversations = [
        row
        for row in models.benchmark.full
        if row.format == "chat" and (row.system is not None or row.examples)
    ]
    if not conversations:
        return
    template = models.template
    for row in conversations:
        template.of(row).prompt(row.question, row.examples)


def row_warnings(
    config: SweepConfig, benchmark: Dataset, models: Sequence[ModelSources]
) -> Iterator[str]:
    """Yield a line for each thing about a user's own rows that makes numbers mean less."""
    if not isinstance(config.data, OwnRows):
        return
    yield from _sequence_warnings(config, benchmark)
    # Splits share rows. A dictionary keeps each row once, in order.
    rows: dict[Question, None] = {}
    for split in benchmark.splits.values():
        rows |= dict.fromkeys((*split.forget, *split.retain))
    for sources in models:
        # If a hub cannot be reached, or if the tokenizer is built here, nothing is counted now.
        with suppress(UnreachableError, ModelError):
            yield from _length_warnings(sources, tuple(rows), config.training.max_length)


def _sequence_warnings(config: SweepConfig, benchmark: Dataset) -> Iterator[str]:
    """Yield a line if a request retains rows that an earlier request has forgotten."""
    if config.requests != "in-sequence":
        return
    split_that_forgot: dict[object, str] = {}
    for key in config.split_keys:
        split = benchmark.splits[key]
        learned_again = [row for row in split.retain if row_key(row) in split_that_forgot]
        if learned_again:
            first = learned_again[0]
            earlier = split_that_forgot[row_key(first)]
            count = counted(len(learned_again), "retain row", "retain rows")
            yield (
                f"requests: in-sequence: {count} of {split.name} would teach again what {earlier} "
                f"forgets, such as {first.place}; name retain rows by split, as in retain: "
                f"{{{earlier}: …, {split.name}: …}}"
            )
        for row in split.forget:
            split_that_forgot[row_key(row)] = split.name


def _length_warnings(models: ModelSources, rows: Sequence[Question], most: int) -> Iterator[str]:
    """Yield a line if rows have more tokens than training reads.

    Args:
        models: The model.
        rows: All training rows, each once.
        most: Largest number of tokens that are trained on.
    """
    if models.is_tiny:
        return
    # Few tokens are shorter than a byte. So texts with few bytes need not be split into tokens.
    longest_texts = sorted(rows, key=_bytes, reverse=True)[:TOKENISED]
    candidates = [row for row in longest_texts if _bytes(row) > most // 2]
    if not candidates:
        return
    encoder = models.encoder(most)
    tokens_and_rows = [(encoder.length(row), row) for row in candidates]
    too_long = [(tokens, row) for tokens, row in tokens_and_rows if tokens > most]
    if not too_long:
        return
    tokens, row = max(too_long, key=_first)
    # If all rows that were counted are too long, so may be others.
    may_be_more = len(too_long) == len(candidates) == TOKENISED
    number = f"{'at least ' if may_be_more else ''}{len(too_long)} of {len(rows)} rows"
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
    """Return a line about rows that training cuts, or None if no row is cut.

    Args:
        where: The model, and the split if the rows are of one: `llama, forget10`.
        rows: The rows as tokens.
        questions: The same rows as texts.
        encoder: The encoder of the rows.
        setting: Name of the setting that bounds their tokens, such as `training.max_length`.
    """
    cut = [question for row, question in zip(rows, questions, strict=True) if row.cut]
    if not cut:
        return None
    longest_texts = sorted(cut, key=_bytes, reverse=True)[:TOKENISED]
    tokens, row = max(((encoder.length(row), row) for row in longest_texts), key=_first)
    place = f", {row.place}," if row.place else ""
    return (
        f"{where}: {len(cut)} of {len(rows)} rows are longer than {setting} "
        f"({encoder.max_length} tokens), the longest{place} has {tokens}: they are cut there, and "
        f"the rest is not trained on; raise {setting}, or divide these texts"
    )


def _first(tokens_and_row: tuple[int, Question]) -> int:
    """Return the number of tokens. Rows have no order."""
    tokens, _ = tokens_and_row
    return tokens


def _bytes(row: Question) -> int:
    """Return the number of bytes of all texts of a row that a model reads."""
    texts = [row.question, row.answer, row.system or ""]
    for example in row.examples:
        texts += example
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)
