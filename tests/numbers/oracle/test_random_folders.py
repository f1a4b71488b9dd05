"""Random folders have every feature, and every pair of features that a configuration may have."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from tests.factories.random_folders import draw, may_combine, write
from unlearnbench.results.records import read_records

FEW, MANY = 100, 2000


def features_of(count: int) -> list[frozenset[str]]:
    return [draw(number).features for number in range(count)]


def test_every_feature_occurs_in_a_hundred_folders() -> None:
    known = {feature for features in features_of(MANY // 2) for feature in features}
    counts = Counter(feature for features in features_of(FEW) for feature in features)
    assert {feature for feature in known if counts[feature] == 0} == set()
    assert len(known) > 60


@pytest.mark.long
def test_every_pair_of_features_occurs() -> None:
    folders = features_of(MANY)
    known = sorted({feature for features in folders for feature in features})
    pairs = {pair for features in folders for pair in itertools.combinations(sorted(features), 2)}
    missing = [
        pair
        for pair in itertools.combinations(known, 2)
        if pair not in pairs and may_combine(*pair)
    ]
    assert missing == []
    assert [pair for pair in sorted(pairs) if not may_combine(*pair)] == []


def test_a_number_gives_the_same_folder(tmp_path: Path) -> None:
    first, second = (write(draw(3), tmp_path / name) for name in ("a", "b"))
    contents = [
        {
            (record.id, epoch): repr(evaluation.sets["forget"].answer_loss.tolist())
            for record in read_records(made.folder)
            for epoch, evaluation in record.evaluations.items()
            if "forget" in evaluation.sets
        }
        for made in (first, second)
    ]
    assert contents[0] == contents[1]
    assert [run.id for run in first.plan.runs] == [run.id for run in second.plan.runs]
