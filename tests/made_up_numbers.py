"""Records on disk whose numbers are made up, and do not follow from their observations."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from unlearnbench.results.finalize import inputs_entry
from unlearnbench.results.records import Record, read_record, write_record
from unlearnbench.results.rules import rules_of


def write_with_made_up_numbers(records: Iterable[Record], folder: Path) -> list[Record]:
    """Write records that say that their numbers are by today's rules, so that tables show them.

    Returns:
        The records as they are read back.
    """
    records = list(records)
    with TemporaryDirectory() as place:
        # The hashes of the files of observations do not depend on what a record says.
        stored = [read_record(write_record(record, Path(place))) for record in records]
    references = [record for record in stored if record.kind != "run"]
    written: list[Record] = []
    for record, on_disk in zip(records, stored, strict=True):
        key = rules_of([on_disk]).of(on_disk).key
        entry = inputs_entry(key, on_disk, references)
        whole = replace(record, provenance={**record.provenance, **entry})
        written.append(read_record(write_record(whole, folder)))
    return written
