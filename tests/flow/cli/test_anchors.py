"""`unlearnbench anchors` compares logs and checkpoints with published numbers."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.made_up_benchmarks import muse
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.schema import Architecture
from unlearnbench.models.tiny import build_model, build_tokenizer

from ...factories.command_line import Run


@pytest.fixture
def logs(open_unlearning_numbers: Path) -> tuple[str, str]:
    """Logs of the fine-tuned model and of the retain model, forget01."""
    names = ("full_forget01", "retain99")
    full, retain = (str(open_unlearning_numbers / f"{name}.json.gz") for name in names)
    return full, retain


def test_a_log_gives_the_published_numbers(run: Run, logs: tuple[str, str]) -> None:
    full, retain = logs
    code, out, err = run(
        *("anchors", "check", "llama-3.2-1b-full-forget01", "--log", full, "--retain", retain)
    )
    _, *lines = out.splitlines()
    assert code == 0
    assert out.startswith("llama-3.2-1b-full-forget01: open-unlearning/tofu_Llama-3.2-1B-")
    assert lines[1].split() == [
        *("metric", "verdict", "published", "measured", "difference"),
    ]
    assert all(line.split()[1] == "ok" for line in lines[2 : 2 + 25])
    assert lines[2 + 25] == "", "the tolerances do not fit in 80 columns"
    assert lines[3 + 25].split() == ["metric", "tolerance"]
    assert err.splitlines()[-1] == "25 of 25 metrics within tolerance"


def test_a_number_that_differs_ends_with_code_1(run: Run, logs: tuple[str, str]) -> None:
    document = json.loads(gzip.decompress(Path(logs[1]).read_bytes()))
    document["exact_memorization"]["value_by_index"]["0"]["score"] += 0.01
    Path("changed.json").write_text(json.dumps(document))
    code, out, err = run("anchors", "check", "llama-3.2-1b-retain99", "--log", "changed.json")
    (line,) = [line for line in out.splitlines() if " differs " in line]
    assert line.startswith("exact_memorization_forget")
    assert code == 1
    assert "outside: exact_memorization_forget" in err


@pytest.fixture
def checkpoint(tofu_folder: Path, tmp_path: Path) -> Path:
    """A tiny model that ends each answer at once, with a chat template, as a repository has it."""
    rows = (tofu_folder / "forget01.json").read_text(encoding="utf-8").splitlines()
    tokenizer = build_tokenizer(rows, 600)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %} {{ date_string }} "
    )
    shape = Architecture(
        vocabulary=600, hidden_size=16, layers=1, heads=2, intermediate_size=16, context=1024
    )
    model: Any = build_model(shape, tokenizer, seed=0)
    with torch.no_grad():  # states are all alike, and the end is the most probable token
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight.zero_()
        model.lm_head.weight[tokenizer.eos_token_id] = 1.0
    folder = tmp_path / "checkpoint"
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_checkpoint_is_evaluated_on_muse(
    run: Run, fake_hub: Any, checkpoint: Path, tmp_path: Path
) -> None:
    fake_hub.add("models/muse-bench/MUSE-News_target", checkpoint)
    (tmp_path / "rows").mkdir()
    rows = muse(tmp_path / "rows")["path"]
    code, out, err = run("anchors", "check", "muse-news-target", "--data", f"muse={rows}", "--json")
    assert code == 1, err
    checks = json.loads(out)["checks"]
    assert [one["verdict"] for one in checks] == ["differs"] * 3
    assert [one["measured"] for one in checks] == [0.0] * 3, "empty answers"
    code, _, err = run("anchors", "check", "muse-news-target")
    assert (code, "give --data muse, and no --log" in err) == (2, True)


@pytest.fixture
def short_tofu(tofu_folder: Path, tmp_path: Path) -> Path:
    """TOFU's own rows, but 40 of each evaluation set, which takes a fifth of the time."""
    folder = tmp_path / "tofu"
    folder.mkdir()
    for file in tofu_folder.iterdir():
        lines = file.read_text(encoding="utf-8").splitlines()
        cut = None if "perturbed" not in file.name or "forget" in file.name else 40
        (folder / file.name).write_text("\n".join(lines[:cut]), encoding="utf-8")
    return folder


def test_a_checkpoint_from_the_hub_is_evaluated_on_tofu(
    run: Run, fake_hub: Any, checkpoint: Path, short_tofu: Path
) -> None:
    name = "llama-3.2-1b-retain99"
    fake_hub.add("models/open-unlearning/tofu_Llama-3.2-1B-Instruct_retain99", checkpoint)
    code, out, err = run("anchors", "check", name, "--data", str(short_tofu), "--json")
    assert out, err
    found = json.loads(out)
    verdicts = {one["metric"]: one["verdict"] for one in found["checks"]}
    measured = {one["metric"]: one["measured"] for one in found["checks"]}
    assert (code, found["reproduced"]) == (1, False), err
    assert verdicts["model_utility"] == verdicts["rouge_forget"] == "differs"
    assert measured["rouge_forget"] == 0.0, "empty answers"
    assert 0 <= measured["exact_memorization_forget"] <= 1
    assert verdicts["mia_loss"] == "not measured", "the folder has no holdout rows"


def test_options_on_loading_reach_the_evaluation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def record(source: str, **options: Any) -> None:
        given.update(options, source=source)
        raise EvaluationError("no more is needed")

    monkeypatch.setattr("unlearnbench.runs.evaluate_model.evaluate_model", record)
    check = ("anchors", "check", "llama-3.2-1b-retain99")
    names = ("dtype", "attention", "trust_remote_code")
    assert run(*check)[0] == 2
    assert [given[name] for name in names] == ["bfloat16", "sdpa", False]
    run(*check, "--dtype", "float32", "--attention", "eager", "--trust-remote-code")
    assert [given[name] for name in names] == ["float32", "eager", True]
