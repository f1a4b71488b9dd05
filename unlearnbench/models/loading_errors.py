"""Turn what libraries raise on a model's files into one ModelError that says what to do."""

from collections.abc import Generator
from contextlib import contextmanager

from unlearnbench.base.errors import ModelError, UnlearnbenchError
from unlearnbench.models.source import Source

_LONGEST_REASON = 1000
"""Characters of a library's message that are quoted."""


@contextmanager
def reading(subject: str, source: Source) -> Generator[None, None, None]:
    """Turn every error that libraries raise on damaged files of `source` into a ModelError.

    A list in place of an object, text in place of a number, or a token out of range end as
    TypeError, AttributeError or a panic of Rust, wherever the library first uses them.

    Args:
        subject: What is read, for the message: `model`, `tokenizer` or `adapter`.
        source: The model whose files are read.
    """
    from unlearnbench.base.out_of_memory import is_out_of_memory

    try:
        yield
    except (UnlearnbenchError, MemoryError):
        raise
    except BaseException as error:
        # The class that pyo3 raises is neither public nor an Exception.
        is_panic = type(error).__name__ == "PanicException"
        if is_out_of_memory(error) or not (is_panic or isinstance(error, Exception)):
            raise
        reason = f"{type(error).__name__}: {quoted_message(error)}"
        raise ModelError(
            f"{source.place}: the {subject} cannot be loaded ({reason}); {_advice(error)}"
        ) from error


def quoted_message(error: BaseException) -> str:
    """Return a library's message on one line. A long message keeps its two ends.

    The middle is left out, because libraries put their hint at the end.
    """
    text = " ".join(str(error).split())
    if len(text) <= _LONGEST_REASON:
        return text
    half = _LONGEST_REASON // 2
    return f"{text[:half]} … {text[-half:]}"


def _advice(error: BaseException) -> str:
    """Say what to do about an error that a library raised on a model's files."""
    if "trust_remote_code" in str(error):
        return (
            "read the Python code that comes with the model and, if you trust it, set "
            "trust_remote_code: true for the model, or give --trust-remote-code"
        )
    if isinstance(error, ImportError):
        return "install the package that is missing, or choose another attention"
    return (
        "a file in it is missing or damaged, or the settings (attention, dtype) do not suit the "
        "model"
    )
