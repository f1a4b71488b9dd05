"""Evaluation logs: the published ones, ours, the way round, and damaged ones."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.observations import SETS, Evaluation, SetEvaluation, SetName
from unlearnbench.config.profiles import OPEN_UNLEARNING, TOFU
from unlearnbench.evaluation.summary import summarize
from unlearnbench.evaluation.tofu_log import FILES, read_log, write_log

PUBLISHED_KEYS = [
    "avg_gt_loss",
    "gt_loss",
    "num_token_gt",
    "generated_text",
    "rouge1_recall",
    "rougeL_recall",
    "average_perturb_loss",
    "avg_paraphrased_loss",
    "truth_ratio",
    "paraphrased_loss",
    "perturb_loss",
    "num_token_paraphrased",
    "num_token_perturb",
]


def random_set(name: SetName, seed: int) -> SetEvaluation:
    rng = np.random.default_rng(seed)
    n, k = {"forget": (4, 5), "retain": (5, 5)}.get(name, (3, 3))
    return SetEvaluation(
        questions=tuple(f"Who is {name} {i}, «ß»?" for i in range(n)),
        generated=tuple(f"It's\n\t{i} \\ \U0001f600 \ud800 \x00" for i in range(n)),
        references=tuple(f"Answer {i}" for i in range(n)),
        answer_loss=rng.exponential(size=n),
        answer_tokens=rng.integers(1, 60, n),
        base_loss=rng.exponential(size=n),
        base_tokens=rng.integers(1, 60, n),
        perturbed_loss=rng.exponential(size=(n, k)),
        perturbed_tokens=rng.integers(1, 60, (n, k)),
        rouge1_recall=rng.random(n),
        rouge_l_recall=rng.random(n),
    )


@pytest.fixture
def evaluation() -> Evaluation:
    return Evaluation(
        profile=OPEN_UNLEARNING.id, sets={name: random_set(name, i) for i, name in enumerate(SETS)}
    )


def assert_identical(one: Evaluation, two: Evaluation) -> None:
    assert one.profile == two.profile
    assert set(one.sets) == set(two.sets) == set(SETS)
    for name in SETS:
        for field in fields(SetEvaluation):
            a, b = getattr(one.sets[name], field.name), getattr(two.sets[name], field.name)
            if not isinstance(a, np.ndarray):  # texts; no values by token or by metric
                assert a == b, (name, field.name)
            else:
                assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@pytest.mark.parametrize("file", ["log.json", "log.json.gz", "new/folder/log.json.gz"])
def test_round_trip_is_bit_exact(evaluation: Evaluation, tmp_path: Path, file: str) -> None:
    write_log(evaluation, tmp_path / file)
    assert_identical(read_log(str(tmp_path / file)), evaluation)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_round_trip_of_numbers_that_are_none(evaluation: Evaluation, tmp_path: Path) -> None:
    odd = np.array([math.nan, math.inf, 0.0, 5e-324, 1.7976931348623157e308])
    recall = np.array([math.nan, 1.0, 0.0, 5e-324, 0.1])
    retain = replace(evaluation.sets["retain"], answer_loss=odd, rouge_l_recall=recall)
    broken = replace(evaluation, sets={**evaluation.sets, "retain": retain})
    write_log(broken, tmp_path / "log.json")
    assert_identical(read_log(tmp_path / "log.json"), broken)


@pytest.mark.parametrize("empty", [("questions",), ("generated", "references"),
                                   ("questions", "generated", "references")])  # fmt: skip
def test_round_trip_without_texts(
    evaluation: Evaluation, tmp_path: Path, empty: tuple[str, ...]
) -> None:
    nothing: dict[str, Any] = dict.fromkeys(empty, ())
    silent = replace(
        evaluation, sets={name: replace(evaluation.sets[name], **nothing) for name in SETS}
    )
    write_log(silent, tmp_path / "log.json")
    assert_identical(read_log(tmp_path / "log.json"), silent)


def test_equal_evaluations_are_equal_files(evaluation: Evaluation, tmp_path: Path) -> None:
    for file in ("one.json.gz", "two.json.gz", "plain.json"):
        write_log(evaluation, tmp_path / file)
    content = (tmp_path / "one.json.gz").read_bytes()
    assert content == (tmp_path / "two.json.gz").read_bytes()
    assert content[4:8] == bytes(4)  # gzip's time of writing
    assert gzip.decompress(content) == (tmp_path / "plain.json").read_bytes()


def test_gzip_is_recognised_under_any_name(evaluation: Evaluation, tmp_path: Path) -> None:
    write_log(evaluation, tmp_path / "log.json.gz")
    (tmp_path / "log.json.gz").rename(tmp_path / "log.json")
    assert_identical(read_log(tmp_path / "log.json"), evaluation)


def test_a_written_log_has_the_published_shape(evaluation: Evaluation, tmp_path: Path) -> None:
    write_log(evaluation, tmp_path / "log.json")
    document = json.loads((tmp_path / "log.json").read_text())
    # TOFU's aggregator takes every top-level key for a set: one more and it stops.
    assert list(document) == list(FILES.values())
    for name, file in FILES.items():
        facts = ["normalized_gt_loss"] if name in ("real_authors", "world_facts") else []
        tables = document[file]
        assert list(tables) == [*PUBLISHED_KEYS, *facts, "question", "profile"]
        assert tables.pop("profile") == OPEN_UNLEARNING.id
        indices = [str(i) for i in range(len(evaluation.sets[name].questions))]
        assert all(list(table) == indices for table in tables.values())
        one = evaluation.sets[name]
        assert tables["generated_text"]["1"] == [
            one.questions[1], one.generated[1], one.references[1]
        ]  # fmt: skip
        assert tables["gt_loss"]["1"] == one.answer_loss[1] * one.answer_tokens[1]
        assert tables["paraphrased_loss"]["1"] == one.base_loss[1] * one.base_tokens[1]
        sums = (one.perturbed_loss * one.perturbed_tokens)[1]
        assert tables["perturb_loss"]["1"] == sums.tolist()


LOGS = [f"{model}_{kind}" for model in ("llama2-7b", "phi") for kind in
        ("full", "retain90", "retain95", "retain99")]  # fmt: skip


@pytest.mark.parametrize("log", LOGS)
def test_a_published_log_comes_out_as_it_went_in(
    eval_logs_folder: Path, tmp_path: Path, log: str
) -> None:
    path = eval_logs_folder / f"{log}.json.gz"
    evaluation = read_log(path)
    assert evaluation.profile == TOFU.id
    write_log(evaluation, tmp_path / "log.json")
    published = json.loads(gzip.decompress(path.read_bytes()))
    ours = json.loads((tmp_path / "log.json").read_text())
    assert list(ours) == list(published)
    for file, tables in published.items():
        extra = {"profile"} | ({"question"} if "generated_text" in tables else set())
        assert set(ours[file]) == set(tables) | extra
        for key, table in tables.items():
            if key == "generated_text":
                for index, (prompt, generated, reference) in table.items():
                    question = ours[file]["question"][index]
                    assert prompt == f"[INST] {question} [/INST]"
                    assert ours[file][key][index] == [question, generated, reference]
                continue
            assert list(ours[file][key]) == list(table)
            logged = np.array(list(table.values()), dtype=np.float64)
            written = np.array(list(ours[file][key].values()), dtype=np.float64)
            # Sums, means and ratios were float32 in TOFU, of losses up to about 12.
            rtol = {"gt_loss": 1e-7, "paraphrased_loss": 1e-7, "perturb_loss": 1e-7,
                    "truth_ratio": 1.5e-6, "normalized_gt_loss": 1e-13}.get(key, 0)  # fmt: skip
            np.testing.assert_allclose(written, logged, rtol=rtol, atol=0, err_msg=key)
    assert_identical(read_log(tmp_path / "log.json"), evaluation)


def test_published_logs_without_texts_have_none(eval_logs_folder: Path) -> None:
    forget = read_log(eval_logs_folder / "phi_full.json.gz").sets["forget"]
    assert (forget.questions, forget.generated, forget.references) == ((), (), ())
    assert forget.perturbed_loss.shape == forget.perturbed_tokens.shape == (300, 5)


def test_merged_logs_are_put_in_order(evaluation: Evaluation, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    write_log(evaluation, path)
    document = json.loads(path.read_text())
    for tables in document.values():
        for key in ("avg_gt_loss", "average_perturb_loss"):
            tables[key] = dict(reversed(tables[key].items()))
    path.write_text(json.dumps(document))
    assert_identical(read_log(path), evaluation)


def test_profile_of_a_log_that_names_none(evaluation: Evaluation, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    write_log(evaluation, path)
    document = json.loads(path.read_text())
    for tables in document.values():
        del tables["profile"]
    path.write_text(json.dumps(document))
    assert read_log(path).profile == TOFU.id
    assert read_log(path, profile=OPEN_UNLEARNING).profile == OPEN_UNLEARNING.id


def test_tofus_aggregation_of_our_log_gives_our_metrics(
    evaluation: Evaluation, tmp_path: Path
) -> None:
    path = tmp_path / "log.json"
    write_log(replace(evaluation, profile=TOFU.id), path)
    summary = summarize(read_log(path), None, TOFU)
    # As another reader would: whatever is at the top is a set, values in file order.
    names = {file: name for name, file in FILES.items()}
    for file, tables in json.loads(path.read_text()).items():
        columns = {key: np.array(list(tables[key].values())) for key in PUBLISHED_KEYS[4:8]}
        false = columns["average_perturb_loss"].mean(axis=-1)
        ratio = np.exp(columns["avg_paraphrased_loss"] - false)
        truth = np.minimum(ratio, 1 / ratio) if "forget" in file else np.maximum(0, 1 - ratio)
        assert summary[f"truth_ratio_{names[file]}"] == pytest.approx(truth.mean(), rel=1e-14)
        recall = columns["rougeL_recall"].mean()
        assert summary[f"rouge_{names[file]}"] == pytest.approx(recall, rel=1e-14)
