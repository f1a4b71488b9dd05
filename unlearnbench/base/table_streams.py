"""Read files with rows as streams through the package `datasets`.

A stream copies nothing to a cache on disk. Every error of a reader becomes a `DataError` of one
line that names the file.
"""

import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from unlearnbench.base.errors import DataError
from unlearnbench.base.table_formats import Format, NumberedRow, TableFile

BATCH = 1000
"""Rows that are held in memory at a time."""


def lines_of(file: TableFile) -> Iterator[str]:
    """Yield the lines of a file without their ends (line feed, carriage return, or both)."""
    # `datasets` would divide a file in the same way. It takes half a second to import.
    with as_data_error(file), opened_text(file) as stream:
        for line in stream:
            yield line.removesuffix("\n")


def rows_of_batches(batches: Iterator[Mapping[str, Sequence[Any]]]) -> Iterator[NumberedRow]:
    """Yield the rows of batches, with their numbers from 1.

    Args:
        batches: Batches, each with the values of each column.
    """
    number = 0
    for batch in batches:
        for values in zip(*batch.values(), strict=True):
            number += 1
            yield NumberedRow(number, dict(zip(batch, values, strict=True)))


def stream_of(file: TableFile, reader: Format | None = None, **options: Any) -> Any:
    """Return the rows of a file as `datasets` reads them: an IterableDataset.

    The classes are called as `Dataset.from_csv` calls them. `load_dataset` would take brackets in a
    path for a pattern, and would tell the hub that someone reads a CSV file.

    Args:
        file: The file.
        reader: Reader to use. None for that of the file's format.
        options: Settings of the reader.
    """
    quiet()
    from datasets.data_files import DataFilesDict, DataFilesList
    from datasets.packaged_modules.arrow.arrow import Arrow
    from datasets.packaged_modules.csv.csv import Csv
    from datasets.packaged_modules.parquet.parquet import Parquet

    builder_classes = {
        Format.CSV: Csv,
        Format.PARQUET: Parquet,
        Format.ARROW: Arrow,
    }
    reader = reader or file.format
    if reader is Format.CSV:
        # Windows begins a text file with a mark. This encoding reads files with and without it.
        options["encoding"] = "utf-8-sig"
    path = str(file.path.absolute())
    files = DataFilesDict({"train": DataFilesList([path], origin_metadata=[()])})
    # A builder locks a file in its cache, even if it never writes there.
    with tempfile.TemporaryDirectory(prefix="unlearnbench-") as cache:
        builder = builder_classes[reader](cache_dir=cache, data_files=files, **options)
    with _without_torch():
        return builder.as_streaming_dataset(split="train")


def text_batches(
    file: TableFile, reader: Format, **options: Any
) -> Iterator[Mapping[str, Sequence[Any]]]:
    """Yield batches of a file in which all values are texts, see `stream_of`.

    Yields:
        The values of each column, of up to `BATCH` rows.
    """
    stream = stream_of(file, reader, **options)
    # Without the format `arrow`, `datasets` makes a dictionary of each row and then batches of the
    # dictionaries. That takes three times as long.
    with _without_torch():
        stream = stream.with_format("arrow")
    for table in stream.iter(BATCH):
        yield table.to_pydict()


def plain_columns(dataset: Any) -> Any:
    """Return a data set of `datasets` without columns of pictures, sounds and the like.

    To decode them takes packages that may not be installed, and no row needs them.
    """
    features: Mapping[str, Any] = dataset.features or {}
    media = [name for name, feature in features.items() if hasattr(feature, "decode")]
    if not media:
        return dataset
    with _without_torch():
        return dataset.remove_columns(media)


@contextmanager
def _without_torch() -> Generator[None, None, None]:
    """Keep `datasets` from importing torch for a stream that no loader of torch will share.

    The import takes seconds, and a command that reads a table may need torch for nothing else.
    """
    from datasets import config

    available = config.TORCH_AVAILABLE
    config.TORCH_AVAILABLE = False
    try:
        yield
    finally:
        config.TORCH_AVAILABLE = available


def quiet() -> None:
    """Turn off the progress bars and messages of `datasets`. Its failures become our errors."""
    import datasets

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)


@contextmanager
def opened_text(file: TableFile, newline: str | None = None) -> Generator[IO[str], None, None]:
    """Open a text file, which may be compressed, without `datasets`.

    Args:
        file: The file.
        newline: Ends of lines, as `open` takes them.
    """
    import fsspec

    opened: Any = fsspec.open(
        str(file.path.absolute()), "rt", compression="infer", encoding="utf-8-sig", newline=newline
    )
    with opened as stream:
        yield stream


@contextmanager
def as_data_error(file: TableFile) -> Generator[None, None, None]:
    """Turn any error of a reader into one line that names the file."""
    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError as error:
        line = _undecodable_line(file)
        place = f"{file.name}:{line}" if line else file.name
        raise DataError(f"{place}: not UTF-8 text; save the file as UTF-8") from error
    except Exception as error:
        # Errors of the disk, pandas, Arrow and `datasets` have many types, and name no line.
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        reason = reason or type(error).__name__
        kind = "" if file.format in (Format.JSON, Format.TEXT) else f" as {file.format.value}"
        raise DataError(f"{file.name}: cannot be read{kind} ({reason})") from error


def _undecodable_line(file: TableFile) -> int | None:
    """Return the number of the first line that is not UTF-8; None if all lines are."""
    import fsspec

    with fsspec.open(str(file.path.absolute()), "rb", compression="infer") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return None
