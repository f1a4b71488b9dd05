"""Metrics that records lack are computed from their files, and no others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.observations import SETS, AnswerTokens, Evaluation, SetEvaluation
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.summary import summarize
from unlearnbench.results import epoch_metrics
from unlearnbench.results.epoch_metrics import numbers, references_of, store_numbers
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import (
    EpochResult,
    Record,
    StoredFile,
    read_record,
    write_record,
)

from .test_records import a_record, a_set


def evaluation(hits: int, loss: float) -> Evaluation:
    """Evaluation of a model that is right in the first `hits` of four tokens of each answer."""
    sets: dict[str, SetEvaluation] = {}
    for name in SETS:
        seen = a_set(n := 2)
        tokens = AnswerTokens(
            lengths=np.full(n, 5),
            ended=np.ones(n, dtype=bool),
            loss=np.full(5 * n, loss, dtype=np.float32),
            hit=np.tile(np.arange(5) >= 4 - hits, n),
            tied=np.zeros(5 * n, dtype=bool),
        )
        words = ("one two three four five",) * n
        own: Any = {"base_loss": seen.base_loss * loss, "generated": words, "token_columns": tokens}
        sets[name] = replace(seen, **own)
    return Evaluation(TOFU.id, sets, precision="float32")


def stored(folder: Path, record_id: str, kind: str, seen: Evaluation, **of: Any) -> Record:
    """A record as this version writes it."""
    columns = summarize(seen, of.get("retain"), TOFU, of.get("start"))
    result = EpochResult(0, columns, 0.0, 0.1)
    changes: Any = {"kind": kind, "epochs": (result,), "evaluations": {0: seen}}
    return read_record(write_record(a_record(record_id, **changes), folder))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The records whose evaluations are read from now on."""
    seen: list[str] = []
    plain: Any = StoredFile.read

    def reads(self: StoredFile) -> Any:
        seen.append(self.path.parent.name)
        return plain(self)

    monkeypatch.setattr(StoredFile, "read", reads)
    epoch_metrics._reference.cache_clear()  # pyright: ignore[reportPrivateUsage]
    return seen


def test_a_retain_model_is_compared_with_the_start_model_when_it_is_read(
    tmp_path: Path, read: list[str]
) -> None:
    """Its own record was written before there was one."""
    start, retain, run = evaluation(4, 0.5), evaluation(1, 1.5), evaluation(2, 1.0)
    records = (
        stored(tmp_path, "aa", "retain", retain, retain=retain),
        stored(tmp_path, "bb", "fine-tuned", start, retain=retain, start=start),
        stored(tmp_path, "cc", "run", run, retain=retain, start=start),
    )
    references = references_of(records)
    rows = [dict(numbers(one, references)[0]) for one in records]
    assert records[0].epochs[0].metrics["kept"] is None
    assert [row["forgotten"] for row in rows] == [1, 0, records[2].epochs[0].metrics["forgotten"]]
    assert rows[1:] == [dict(one.epochs[0].metrics) for one in records[1:]]
    assert rows[0]["kept"] == pytest.approx(summarize(retain, retain, TOFU, start)["kept"])
    assert sorted(read) == ["aa", "aa", "bb"], "runs have all columns: none is read"
    store_numbers(records)
    read.clear()
    assert numbers(records[0], references)[0] == rows[0]
    assert not read, "they are stored"
    assert numbers(records[0], references_of(records[:1]))[0]["kept"] is None, "without a start"


def test_metrics_with_other_settings_are_computed_again(tmp_path: Path, read: list[str]) -> None:
    """And the summaries that read them; all other columns stay as they are stored."""
    seen = [evaluation(2, loss) for loss in (0.5, 1.5)]
    seen = [replace(e, sets={**e.sets, "holdout": e.sets["retain"]}) for e in seen]
    losses = {"forget": [4, 0, 0, 0, 0], "holdout": [2, 2, 2, 2, 0]}
    for name, by_token in losses.items():
        seen[0].sets[name].tokens.loss[:] = by_token * 2
    run = stored(tmp_path, "aa", "run", seen[0], retain=seen[1])
    retain = stored(tmp_path, "bb", "retain", seen[1], retain=seen[1])
    chosen = {"mia-min-k": {"share": 1.0}}
    table_of((run,))
    assert read == [], "what is stored needs no file"
    plain, other = (
        next(row for row in table_of((run, retain), how).rows if row.kind == "run")
        for how in (None, chosen)
    )
    wanted = summarize(seen[0], seen[1], TOFU, chosen=chosen)
    assert (plain.metrics["mia_min_k"], wanted["mia_min_k"]) == (0, 1)
    changed = {n for n, value in other.metrics.items() if value != plain.metrics[n]}
    assert changed == {n for n, value in wanted.items() if value != plain.metrics[n]}
    assert (
        {"mia_min_k", "privleak"}
        <= changed
        <= {"mia_min_k", "mia_min_k_tpr", "privleak", "private"}
    )
    assert {*read} == {"aa", "bb"}
    attacked = EpochResult(0, {"mia_min_k": 0.5, "rouge_forget": 0.5}, 0.0, 0.0, "noise@1")
    (under,) = table_of([replace(run, attacked=(attacked,))], chosen).attacked
    assert (under.metrics["mia_min_k"], under.metrics["rouge_forget"]) == (None, 0.5)


def test_a_model_whose_attack_failed_is_not_a_second_one(tmp_path: Path) -> None:
    retain = stored(tmp_path, "aa", "retain", evaluation(1, 1.5))
    failed = replace(retain, id="bb", epochs=())
    assert [*references_of([retain, failed]).values()] == [retain]


def test_damaged_files_and_two_models_for_one_place_leave_what_is_stored(tmp_path: Path) -> None:
    start = evaluation(4, 0.5)
    records = [stored(tmp_path, name, "fine-tuned", start) for name in ("aa", "bb")]
    run = stored(tmp_path, "cc", "run", start)
    early = replace(run.epochs[0], metrics={"model_utility": 0.5, "rouge_forget": float("nan")})
    run = replace(run, epochs=(early,))
    one = numbers(run, references_of(records[:1]))[0]
    assert (one["kept"], one["rouge_forget"]) == (1, None)
    (run_file,) = (tmp_path / "records" / "cc").glob("epoch-*")
    content = run_file.read_bytes()
    run_file.write_bytes(b"damaged")
    two = numbers(run, references_of(records))[0]
    assert (two["model_utility"], two["kept"]) == (0.5, None)
    run_file.write_bytes(content)
    two = numbers(run, references_of(records))[0]
    assert (two["kept"], two["exact_memorization_forget"]) == (None, 1), "nothing wrong was stored"
