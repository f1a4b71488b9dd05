"""The tree of a question's rows, against one that looks up whole prefixes."""

import random

import pytest

from unlearnbench.evaluation.prefix_tree import build_tree
from unlearnbench.models.token_row import Row


def some_rows(seed: int) -> list[Row]:
    """Rows that share prefixes of random lengths; some are equal, or a beginning of others."""
    dice = random.Random(seed)
    texts = [tuple(dice.choices(range(3), k=dice.randint(2, 12)))]
    for _ in range(7):
        shared = dice.choice(texts)
        shared = shared[: dice.randint(0, len(shared))]
        texts.append((*shared, *dice.choices(range(3), k=dice.randint(2, 8))))
    rows: list[Row] = []
    for ids in texts:
        start = dice.randint(1, len(ids) - 1)
        masked = tuple(sorted(dice.sample(range(len(ids) - 1), dice.randint(0, 1))))
        rows.append(Row(ids, start, masked=masked))
    return [*rows, rows[2]]


@pytest.mark.parametrize("seed", range(50))
def test_nodes_are_the_distinct_prefixes(seed: int) -> None:
    rows = some_rows(seed)
    tree = build_tree(rows, rows[0].ids[: rows[0].start])

    prefixes: list[tuple[int, ...]] = []
    for row in rows:
        for end in range(1, len(row.ids)):
            if row.ids[:end] not in prefixes:
                prefixes.append(row.ids[:end])
    assert tree.rows == tuple(dict.fromkeys(rows))
    assert tree.ids.tolist() == [prefix[-1] for prefix in prefixes]
    assert tree.depths.tolist() == [len(prefix) - 1 for prefix in prefixes]
    for row, path in zip(tree.rows, tree.paths, strict=True):
        ends = range(1, len(row.ids))
        assert path.tolist() == [prefixes.index(row.ids[:end]) for end in ends]

    # Each node belongs to the branch of the first row that has it.
    own_nodes = [node for branch in tree.branches for node in range(branch.begin, branch.end)]
    assert own_nodes == [*range(len(prefixes))]
    for branch in tree.branches:
        (first, *_) = [path for path in tree.paths if branch.end - 1 in path.tolist()]
        assert [*branch.above.tolist(), *range(branch.begin, branch.end)] == first.tolist()
        row = tree.rows[[path is first for path in tree.paths].index(True)]
        assert branch.masked.tolist() == first[list(row.masked)].tolist()
