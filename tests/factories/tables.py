"""Tables that a sweep has written, as a spreadsheet reads them."""

import csv
from pathlib import Path


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file: texts by the names of the columns."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
