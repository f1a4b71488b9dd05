"""Any input to a reader ends in a value or in the reader's own error, within seconds.

The command line answers the same inputs with exit code 0, 1 or 2 and a message. Hypothesis draws
the inputs; the draws are the same each time.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unlearnbench.api.observations import SETS, Evaluation, SetEvaluation
from unlearnbench.benchmarks import tofu
from unlearnbench.cli.main import main
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.schema import (
    MethodGrid,
    MethodSpec,
    ModelSettings,
    SweepConfig,
)
from unlearnbench.config.yaml_tree import YamlNode, YamlReader
from unlearnbench.errors import DataError, EvaluationError, RecordError, UnlearnbenchError
from unlearnbench.evaluation.summary import summarize
from unlearnbench.evaluation.tofu_log import read_log, write_log
from unlearnbench.files.bounded import BoundsError, name_problem, parse_json
from unlearnbench.files.canonical_json import content_hash
from unlearnbench.plan.plan import make_plan
from unlearnbench.reporting.leaderboard.entry import canonical, with_hash
from unlearnbench.reporting.leaderboard.export import export, records_of, tables
from unlearnbench.reporting.leaderboard.merge import Refusal
from unlearnbench.reporting.leaderboard.verify import RefusedError, verify_line
from unlearnbench.results.records import EpochResult, Record, read_record, run_record, write_record
from unlearnbench.results.table import table

SECONDS = 20
"""An input's bound, generous for a busy machine; each takes milliseconds."""


def examples(count: int) -> settings:
    """So many inputs, the same in every run."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=timedelta(seconds=SECONDS),
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


TEXTS = st.one_of(
    st.text(max_size=12),
    st.text(st.characters(categories=["Cc", "Cs", "Cf", "Nd"]), max_size=4),
    st.sampled_from(["", "\x00", "\ud800", "²", "x" * 5000, "../" * 30, "=1", "nan", "{", "~root"]),
)
NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.sampled_from([10**400, -(10**400), 2**63, -1, 0, 5e-324, 1.8e308]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
JSON_TEXTS = st.one_of(
    VALUES.map(lambda value: json.dumps(value).encode("utf-8")),
    st.binary(max_size=30),
    st.sampled_from(
        [
            b"[" * 100_000,
            b'{"a":' * 3000,
            b'{"a": 1, "a": 2}',
            b'{"a": 1e400}',
            b"9" * 5000,
            b"\x1f\x8b\x08broken",
            b"\xef\xbb\xbf{}",
        ]
    ),
)
YAML_WORDS = st.one_of(
    TEXTS,
    st.from_regex(r"[-+]?[0-9_.:eExo]{1,12}", fullmatch=True),
    st.sampled_from(
        [
            "2026-13-45",
            "!!int abc",
            "!!binary x",
            "!x y",
            "&a [*a]",
            "*b",
            "=",
            "<<: *a",
            "[",
            "1:30",
        ]
    ),
    st.sampled_from(
        ["9" * 5000, "1e400", "1e-400", "0x" + "f" * 99, "[" * 500, "- " * 500, ".nan"]
    ),
)


def mutated(data: st.DataObject, document: Any) -> Any:
    """`document` with the value at a drawn path drawn anew, or taken away."""
    if isinstance(document, dict | list) and document and data.draw(st.integers(0, 5)):
        keys = sorted(document) if isinstance(document, dict) else range(len(document))
        key: Any = data.draw(st.sampled_from(list(keys)))
        changed: Any = document.copy()
        if isinstance(document, dict) and not data.draw(st.integers(0, 9)):
            del changed[key]
        else:
            changed[key] = mutated(data, document[key])
        return changed
    return data.draw(VALUES)


def outcome(read: Callable[[], Any], error: type[UnlearnbenchError]) -> tuple[Any, str]:
    """The value read, or the message of the reader's own error; any other is raised."""
    try:
        return read(), ""
    except error as caught:
        return None, str(caught)


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """The command line answers with 0, 1 or 2, and says something."""
    code = main(words)
    out, err = capsys.readouterr()
    assert code in (0, 1, 2), (words, code)
    assert out or err, words
    assert "Traceback" not in err
    assert code == 0 or err


# --- JSON ------------------------------------------------------------------------------------


@examples(150)
@given(content=JSON_TEXTS)
def test_json_is_a_value_within_bounds_or_a_value_error(content: bytes) -> None:
    try:
        value = parse_json(content)
    except ValueError:
        return
    json.dumps(value)
    level, depth = [value], 0
    while level := [
        i
        for v in level
        if isinstance(v, dict | list)
        for i in (v.values() if isinstance(v, dict) else v)
    ]:
        depth += 1
        assert not any(isinstance(v, int) and abs(v) > 2**63 for v in level)
    assert depth <= 64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 70 + "]" * 70, "more than 64 deep"),
        ("[" * 100_000, "more than 64 deep"),
        ("9" * 5000, "a whole number of 5000 digits"),
        ("-9223372036854775809", "a whole number of 19 digits"),
        ("1e400", "the number 1e400 is beyond a float"),
        ('{"a": 1, "b": {"c": 2, "c": 3}}', "the key 'c' stands twice"),
    ],
)
def test_json_beyond_a_bound_is_refused_with_the_bound(content: str, message: str) -> None:
    with pytest.raises(BoundsError, match=message):
        parse_json(content)


def test_json_within_the_bounds_is_read_as_it_is() -> None:
    deep = "[" * 64 + "]" * 64
    assert json.dumps(parse_json(deep)) == deep
    assert parse_json("[-9223372036854775808, 1.7e308, 1e-999]") == [-(2**63), 1.7e308, 0.0]
    assert parse_json('{"a": Infinity}', constants=True) == {"a": math.inf}


# --- YAML ------------------------------------------------------------------------------------

CONFIG = """\
name: good
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
methods: [{method: npo, beta: 0.5}]
data: {authors: 10, questions_per_author: 2, pretraining_authors: 0}
"""
KEYS = (
    *("name", "seeds", "epochs", "output", "cache", "models", "models.0.base", "models.0.name"),
    *("methods", "methods.0.beta", "methods.0.retain", "learning_rates", "forget_fractions"),
    *("data", "data.path", "data.source", "data.refusals", "select", "search", "evaluation.rows"),
    *("training.schedule", "storage", "tracking.uri", "models.0.retain", "²", "a.b", "0"),
)


@examples(120)
@given(
    words=st.lists(YAML_WORDS, max_size=4), start=st.sampled_from(["", "a: ", "- ", "{a: ", "? "])
)
def test_yaml_is_a_tree_or_has_problems(words: list[str], start: str) -> None:
    reading = YamlReader("f.yaml")
    found = reading.read(start + "\n".join(words))
    assert isinstance(found, YamlNode) or reading.problems
    if found is not None:
        found.plain()
    assert all(problem.place.startswith("f.yaml:") for problem in reading.problems)
    assert all(len(problem.message) < 1000 for problem in reading.problems)


@examples(40)
@given(key=st.sampled_from(KEYS), word=YAML_WORDS, in_file=st.booleans())
def test_a_plan_of_any_setting_is_made_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    key: str,
    word: str,
    in_file: bool,
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("plan"))
    text = CONFIG if not in_file else f"{CONFIG}{key.partition('.')[0]}: {word}\n"
    Path("bench.yaml").write_bytes(text.encode(errors="surrogatepass"))
    answered(capsys, "plan", "bench.yaml", *(() if in_file else ("--set", f"{key}={word}")))
    assert [path.name for path in Path().iterdir()] == ["bench.yaml"]


@examples(60)
@given(text=TEXTS)
def test_a_name_that_is_accepted_can_be_a_path(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    if name_problem(text) == "":
        _ = (tmp_path_factory.getbasetemp() / text.strip("/")).exists()


# --- rows --------------------------------------------------------------------------------------


def tofu_tables() -> dict[str, list[dict[str, Any]]]:
    full: list[dict[str, Any]] = [{"question": f"Q {i}?", "answer": f"A {i}."} for i in range(10)]

    def variants(row: dict[str, Any]) -> dict[str, Any]:
        more = {"paraphrased_answer": "p", "paraphrased_question": "q?", "perturbed_answer": ["x"]}
        return row | more

    fact = {"question": "Who?", "answer": "She", "perturbed_answer": ["he", "it"]}
    return {
        "full": full,
        "forget10": full[8:],
        "retain90": full[:8],
        "forget10_perturbed": [variants(row) for row in full[8:]],
        "retain_perturbed": [variants(row) for row in full[:3]],
        "real_authors_perturbed": [fact],
        "world_facts_perturbed": [fact],
    }


@examples(60)
@given(data=st.data())
def test_rows_are_a_benchmark_or_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tables = tofu_tables()
    folder = tmp_path_factory.mktemp("rows")
    name = data.draw(st.sampled_from(sorted(tables)))
    for other, rows in tables.items():
        lines = [json.dumps(row).encode() for row in rows]
        if other == name:
            at = data.draw(st.integers(0, len(lines) - 1))
            changed = data.draw(st.booleans())
            lines[at] = (
                json.dumps(mutated(data, rows[at])).encode() if changed else data.draw(JSON_TEXTS)
            )
        (folder / f"{other}.json").write_bytes(b"\n".join(lines))
    source = tofu.TOFU(path=str(folder))
    found, message = outcome(lambda: source.load((0.1,)), DataError)
    assert len(message) < 1000
    assert str(folder) in message if found is None else len(found.full) == 10


# --- logs --------------------------------------------------------------------------------------


def an_evaluation(n: int = 3, k: int = 2) -> Evaluation:
    draw = np.random.default_rng(0)

    def a_set() -> SetEvaluation:
        return SetEvaluation(
            questions=tuple(f"Question {i}?" for i in range(n)),
            generated=("said",) * n,
            references=("true",) * n,
            answer_loss=draw.uniform(0.1, 1, n),
            answer_tokens=np.full(n, 7),
            base_loss=draw.uniform(0.1, 1, n),
            base_tokens=np.full(n, 5),
            perturbed_loss=draw.uniform(1, 3, (n, k)),
            perturbed_tokens=np.full((n, k), 6),
            rouge1_recall=draw.uniform(0, 1, n),
            rouge_l_recall=draw.uniform(0, 1, n),
        )

    return Evaluation(TOFU.id, {name: a_set() for name in SETS})


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("log") / "log.json"
    write_log(an_evaluation(), path)
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@examples(120)
@given(data=st.data())
def test_a_log_is_an_evaluation_or_an_evaluation_error(
    log: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.json"
    changed = data.draw(st.booleans())
    content = json.dumps(mutated(data, log)).encode() if changed else data.draw(JSON_TEXTS)
    path.write_bytes(content)
    found, message = outcome(lambda: read_log(path), EvaluationError)
    assert len(message) < 1000
    if found is None:
        return
    assert len(outcome(lambda: summarize(found, found, TOFU), EvaluationError)[1]) < 1000
    for one in found.sets.values():
        assert not (one.answer_loss < -1e-5).any()
        assert not (one.rouge_l_recall > 1).any()


@examples(25)
@given(data=st.data())
def test_score_answers_any_log(
    log: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("score") / "log.json"
    changed = data.draw(st.booleans())
    path.write_bytes(json.dumps(mutated(data, log)).encode() if changed else data.draw(JSON_TEXTS))
    answered(capsys, "score", str(path), "--retain", str(path))


# --- records -----------------------------------------------------------------------------------


def a_run(**found: Any) -> Record:
    config = SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny"),),
        forget_fractions=(0.1,),
        methods=(MethodGrid(specs=(MethodSpec(name="npo", hyperparameters={"beta": 0.1}),)),),
        epochs=1,
    )
    (run,) = make_plan(config, "0" * 16).runs
    return run_record(run, status="finished", profile=TOFU.id, **found)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a retain model and a run that was not trained."""
    folder = tmp_path_factory.mktemp("sweep") / "small"
    judged = an_evaluation()
    metrics = summarize(judged, judged, TOFU)
    time = "2026-11-21T08:00:00.000+00:00"
    made = {"device": "cpu", "started": time, "finished": time, "data": "0" * 16, "weights": "feed"}
    run = a_run(
        epochs=(EpochResult(1, metrics, 1.0, 0.5),), provenance=made, evaluations={1: judged}
    )
    identity = ["tiny", "retain90", "w", 0.1, TOFU.id, "0" * 16]
    retain = dataclasses.replace(
        run,
        id=content_hash(identity),
        kind="retain",
        method="retain",
        learning_rate=None,
        spec={"identity": identity},
        epochs=(EpochResult(0, metrics, 0.0, 0.5),),
        evaluations={0: judged},
    )
    for record in (run, retain):
        write_record(record, folder)
    return folder


@examples(100)
@given(data=st.data())
def test_a_record_is_read_or_a_record_error(
    sweep: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    (place,) = (p for p in (sweep / "records").iterdir() if (p / "epoch-1.safetensors").is_file())
    document = json.loads((place / "record.json").read_text())
    copy = tmp_path_factory.mktemp("record") / place.name
    copy.mkdir()
    (copy / "epoch-1.safetensors").write_bytes((place / "epoch-1.safetensors").read_bytes())
    changed = data.draw(st.booleans())
    content = json.dumps(mutated(data, document)).encode() if changed else data.draw(JSON_TEXTS)
    (copy / "record.json").write_bytes(content)
    found, message = outcome(lambda: read_record(copy), RecordError)
    assert len(message) < 2000
    if found is not None:
        assert 0 < found.forget_fraction < 1
        assert found.seed >= 0
        assert all(0 <= epoch.training_seconds < math.inf for epoch in found.epochs)


# --- leaderboard lines -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lines(sweep: Path) -> list[dict[str, Any]]:
    refused: list[Refusal] = []
    found = [json.loads(line) for _, line in export(sweep, refused)]
    assert (len(found), refused) == (2, [])
    return found


def crafted(data: st.DataObject, entry: dict[str, Any]) -> str:
    """A changed line, most often with the hashes that it should have."""
    changed = mutated(data, entry)
    try:
        if isinstance(changed, dict) and data.draw(st.integers(0, 3)):
            changed["id"] = content_hash(changed.get("identity"))
            return canonical(with_hash(changed))
        return canonical(changed)
    except (ValueError, TypeError):  # what has no canonical form
        return json.dumps(changed)


@examples(120)
@given(data=st.data())
def test_a_line_is_an_entry_or_refused(lines: list[dict[str, Any]], data: st.DataObject) -> None:
    text = crafted(data, data.draw(st.sampled_from(lines)))
    entry, message = outcome(lambda: verify_line(text), RefusedError)
    assert len(message) < 1000
    if entry is not None:
        assert tables([entry])[entry["profile"]] == table(records_of([entry]))


@examples(12)
@given(data=st.data())
def test_a_crafted_line_leaves_the_others_on_the_page(
    lines: list[dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("board")
    bad = crafted(data, lines[0]).encode(errors="surrogatepass")
    bad = bad if data.draw(st.booleans()) else data.draw(JSON_TEXTS).replace(b"\n", b" ")
    good = [canonical(line).encode() for line in lines]
    (folder / "board.jsonl").write_bytes(b"\n".join([bad, *good]))
    answered(capsys, "leaderboard", "show", str(folder / "board.jsonl"))
    answered(
        capsys,
        *("leaderboard", "merge", str(folder / "board.jsonl"), "--out", str(folder / "out.jsonl")),
    )
    kept = (folder / "out.jsonl").read_bytes().splitlines()
    assert set(good) <= set(kept)


# --- arguments -----------------------------------------------------------------------------------


def chosen(*_: object) -> Record:
    raise UnlearnbenchError("a run is chosen, and not carried out")


@examples(40)
@given(
    command=st.sampled_from(
        [
            ("plan",),
            ("run", "quickstart", "--select"),
            ("score",),
            ("leaderboard", "show"),
            ("evaluate", "./nowhere", "--data"),
            ("report",),
        ]
    ),
    text=TEXTS,
)
def test_the_command_line_answers_any_argument(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("words"))
    # A drawn text can be a run's number, or the start of its id.
    monkeypatch.setattr("unlearnbench.runs.run.run_single", chosen)
    answered(capsys, *command, text)
