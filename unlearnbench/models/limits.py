"""Limits of a model that rows and tokenizers must respect: its context and its vocabulary."""

from collections.abc import Sequence
from typing import Any

from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import ModelError
from unlearnbench.base.row_texts import row_text
from unlearnbench.models.token_row import Row

_CONTEXT_KEYS = (
    *("max_position_embeddings", "n_positions", "n_ctx"),
    # Models without a table of positions state the length that they were trained on.
    *("max_seq_len", "max_sequence_length", "seq_length", "context_length"),
)


def max_context(model: Any) -> int | None:
    """Return the number of tokens that a model can read, or None if it has no bound."""
    context: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return context


def context_length(config: Any) -> int | None:
    """Return the number of tokens that a model can read, or was trained to read, by its config.

    The result is None if the config has no such number, as in most state-space models.
    """
    text_config = config.get_text_config()
    for key in _CONTEXT_KEYS:
        value = getattr(text_config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def check_context(
    model: Any, rows: Sequence[Row], questions: Sequence[Question], setting: str
) -> None:
    """Check that no training row is longer than the model can read.

    Args:
        model: The model that is trained.
        rows: The tokenised rows.
        questions: The questions from which the rows were made, in the same order.
        setting: The key that bounds the rows, for the message.

    Raises:
        ModelError: A row is too long. The message names the first such row.
    """
    context = max_context(model)
    if context is None:
        return
    for row, question in zip(rows, questions, strict=True):
        if len(row.ids) > context:
            where = question.place or f"the row {row_text(question.opening)}"
            raise ModelError(
                f"{where}: {len(row.ids)} tokens to train on, but the model's context is "
                f"{context}; set {setting} to {context} or less, and the row is cut there"
            )


def check_vocabulary(model: Any, tokenizer: Any) -> None:
    """Raise ModelError if the tokenizer makes ids that the model has no embedding for."""
    # `num_embeddings` would not do, because some of peft's wrappers lack it.
    size = len(model.get_input_embeddings().weight)
    largest = _largest_id(tokenizer)
    if largest >= size:
        raise ModelError(
            f"the tokenizer makes ids up to {largest} of texts, and the model's embedding has "
            f"{size} entries; they do not belong together: name the model's own tokenizer"
        )


def pad_id(tokenizer: Any) -> int:
    """Return the id for padding. Attention masks it, so any id will do.

    Raises:
        ModelError: The tokenizer has no EOS token, which ends every answer.
    """
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no EOS token, which ends every answer; set one")
    pad = tokenizer.pad_token_id
    if pad is None or pad > _largest_id(tokenizer):  # the model may have no embedding for it
        return int(tokenizer.eos_token_id)
    return int(pad)


def _largest_id(tokenizer: Any) -> int:
    """Return the largest id in an encoded text with its template.

    An added token, such as a `<pad>` after the vocabulary, counts only if texts begin or end with
    it, or if the chat template names it.
    """
    template = str(tokenizer.chat_template)
    added: dict[str, int] = tokenizer.get_added_vocab()
    ids = [tokenizer.vocab_size - 1]
    ids += [number for token, number in added.items() if token in template]
    ids += [end for end in (tokenizer.bos_token_id, tokenizer.eos_token_id) if end is not None]
    return max(map(int, ids))
