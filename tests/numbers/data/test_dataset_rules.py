"""Rules of a benchmark's rows do not depend on what a user calls a split."""

import pytest

from unlearnbench.api.benchmark import Dataset, Question, Split
from unlearnbench.config.entries import benchmark_named
from unlearnbench.models.dataset_rules import holdout_faults

NAMES = ("books", "full", "pretraining", "facts")
"""Names of splits, of which the last three are also names of other rows of a benchmark."""
ADA, BEA, CAI = (Question(f"Who is {name}?", name) for name in ("Ada", "Bea", "Cai"))


@pytest.mark.parametrize("name", NAMES)
def test_a_holdout_row_in_the_full_set_is_found(name: str) -> None:
    """Such a row is neither forgotten nor retained, but the start model is trained on it."""
    split = Split(name, (ADA,), (BEA,), {"holdout": (CAI,)})
    rows = Dataset("own", (ADA, BEA, CAI), {name: split})
    [fault] = holdout_faults(benchmark_named("tofu"), rows, split)
    assert fault.startswith(f"set holdout of {name}, row 1: the same row as full, row 3; ")


@pytest.mark.parametrize("name", NAMES)
def test_a_holdout_row_among_the_forget_rows_is_found(name: str) -> None:
    split = Split(name, (ADA,), (BEA,), {"holdout": (ADA,)})
    rows = Dataset("own", (), {name: split})
    [fault] = holdout_faults(benchmark_named("tofu"), rows, split)
    assert fault.startswith(f"set holdout of {name}, row 1: the same row as {name}, row 1; ")
