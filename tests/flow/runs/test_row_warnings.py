"""What a plan says about a user's own rows, and by which rules they are evaluated."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.errors import ModelError
from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import SweepConfig
from unlearnbench.runs.plan_sweep import plan_sweep

LONG = " ".join(["Ada Voss was born in Lima."] * 200)


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any, make_model: Callable[[], Any]
) -> Path:
    """The working directory, with a model folder and files of rows."""
    monkeypatch.chdir(tmp_path)
    make_model().save_pretrained("model")
    tokenizer.save_pretrained("model")
    write("forget", [{"question": "Who?", "answer": "Ada Voss."}])
    write("retain", [{"question": f"Where is {i}?", "answer": "In Lima."} for i in range(3)])
    drain()
    return tmp_path


def write(name: str, rows: list[Any]) -> None:
    lines = "\n".join(map(json.dumps, rows))
    Path(f"{name}.jsonl").write_text(lines, encoding="utf-8")


def config(**keys: str) -> SweepConfig:
    """A configuration of own questions, with further lines of YAML by key."""
    lines = {
        "name": "mine",
        "data": "{source: questions, forget: forget.jsonl, retain: retain.jsonl}",
        "models": "[{name: small, base: model}]",
        "methods": "[ce-u]",
        "epochs": "1",
        "training": "{batch_size: 1}",
    } | keys
    text = "\n".join(f"{key}: {value}" for key, value in lines.items())
    Path("mine.yaml").write_text(text, encoding="utf-8")
    return load_config("mine.yaml")


@pytest.mark.usefixtures("place")
def test_own_rows_are_evaluated_by_our_own_rules_unless_others_are_named() -> None:
    assert config().evaluation.profile == "unlearnbench"
    assert config(evaluation="{rows: 5}").evaluation.profile == "unlearnbench"
    assert config(evaluation="{profile: tofu}").evaluation.profile == "tofu"
    synthetic = config(data="{source: synthetic}", forget_fractions="[0.1]")
    assert synthetic.evaluation.profile == "tofu"
    again = SweepConfig.model_validate_json(config().model_dump_json())
    assert again.evaluation.profile == "unlearnbench"


@pytest.mark.usefixtures("place")
def test_a_plan_says_which_columns_were_taken() -> None:
    _, rows = plan_sweep(config())
    assert rows.notes[0] == (
        "data.forget: 1 row of forget.jsonl, with the columns question: question, answer: answer"
    )
    assert not [line for line in drain() if "longer than" in line]


@pytest.mark.usefixtures("place")
def test_rows_that_training_cuts_are_counted_and_the_longest_is_named() -> None:
    rows = [
        {"question": f"Where is {i}?", "answer": answer}
        for i, answer in enumerate(("In Lima.", LONG, LONG + LONG, "In Perth."))
    ]
    write("retain", rows)
    plan_sweep(config(training="{batch_size: 1, max_length: 100}"))
    (line,) = [line for line in drain() if "longer than" in line]
    assert line.startswith(
        "small: 2 of 5 rows are longer than training.max_length (100 tokens), the longest, "
        "retain.jsonl:3, has "
    )
    assert "behind the model's context of 256" in line


@pytest.mark.usefixtures("place")
def test_what_one_request_forgets_the_next_one_does_not_retain_unnoticed() -> None:
    for name in ("a", "b"):
        write(name, [{"question": f"Who is {name}?", "answer": f"{name} is Ada Voss."}])
    tables = "{source: questions, forget: {a: a.jsonl, b: b.jsonl}, retain: RETAIN}"
    shared = tables.replace("RETAIN", "retain.jsonl")
    by_split = tables.replace("RETAIN", "{a: retain.jsonl, b: retain.jsonl}")
    plan_sweep(config(data=shared, requests="in-sequence"))
    (line,) = [line for line in drain() if "in-sequence" in line]
    assert line == (
        "requests: in-sequence: 1 retain row of b would teach again what a forgets, such as "
        "a.jsonl:1; name retain rows by split, as in retain: {a: …, b: …}"
    )
    plan_sweep(config(data=by_split, requests="in-sequence"))
    assert not [line for line in drain() if "in-sequence" in line]


@pytest.mark.usefixtures("place")
def test_a_system_message_that_the_template_has_not_is_refused_before_a_model_is_loaded() -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "Ada Voss."},
    ]
    write("forget", [{"messages": turns}])
    with pytest.raises(ModelError, match="template, plain, has no system messages"):
        plan_sweep(config())
    write("forget", [{"messages": turns[1:] * 2}])
    plan, rows = plan_sweep(config())
    assert rows.splits["all"].forget[0].examples == (("Who?", "Ada Voss."),)
    assert plan.runs
