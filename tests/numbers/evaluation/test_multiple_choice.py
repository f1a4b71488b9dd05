"""Options of a multiple choice as lm-evaluation-harness scores them."""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import ByteLevel

from benchmarks import lm_eval as beside
from unlearnbench.api.benchmark import Question
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.base.errors import ModelError
from unlearnbench.benchmarks.multiple_choice import Choice, Style, choices
from unlearnbench.benchmarks.published_tables import Table, Tables
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES, Template

ROWS = (
    Choice(question=" What is the job of Ada? ", choices=("a baker", "poet", " no job"), answer=1),
    Choice(question="Where was Ada born?", choices=("Rome", "Rome", "in Paris, France"), answer=1),
    Choice(question="Who is it?", choices=("Ada", "the author of many novels"), answer=0),
)
CHAT = Template("chat", "<u>", "<a>\n", special_tokens=False, system=("<s>", "<u>"))


def asked(style: Style, rows: Sequence[Choice] = ROWS) -> list[Question]:
    return [row.row(style, "About Ada.\n\n") for row in rows]


def plain(model: Any, tokenizer: Any, text: str, options: Sequence[str]) -> list[float]:
    """The rule as lm-evaluation-harness states it, one option after the other."""
    sums: list[float] = []
    bare = text.rstrip()
    start = len(tokenizer(bare)["input_ids"])
    for option in options:
        ids = torch.tensor(tokenizer(text + option)["input_ids"])
        with torch.no_grad():
            logprobs = model(ids[None, :-1]).logits[0].double().log_softmax(-1)
        scored = ids[start:]
        sums.append(float(logprobs[start - 1 :].gather(1, scored[:, None]).sum()))
    return sums


def evaluated(
    model: Any, tokenizer: Any, rows: Sequence[Question], template: Template = TEMPLATES["plain"]
) -> SetEvaluation:
    evaluator = Evaluator({"set": rows}, tokenizer, template, TOFU, pad_id(tokenizer))
    return evaluator(model).sets["set"]


@pytest.mark.parametrize("style", ["letters", "texts"])
def test_options_have_the_log_probability_of_the_plain_rule(
    sharp: Any, tokenizer: Any, style: Style
) -> None:
    rows = asked(style)
    seen = evaluated(sharp, tokenizer, rows)
    assert seen.generated == (), "no answer is generated"
    assert seen.options == tuple(row.options for row in rows)
    for row, found in zip(rows, beside.own_logprobs(seen), strict=True):
        expected = plain(sharp, tokenizer, row.question, [f" {option}" for option in row.options])
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_chat_template_divides_without_a_space(sharp: Any, tokenizer: Any) -> None:
    rows = [row.row("texts", "About Ada.\n\n", format_="chat") for row in ROWS]
    seen = evaluated(sharp, tokenizer, rows, CHAT)
    for row, found in zip(rows, beside.own_logprobs(seen), strict=True):
        # Its last blank is scored with each option.
        text = f"<s>About Ada.\n\n<u>{row.question}<a>\n"

        def bare(text: str) -> Any:
            return tokenizer(text, add_special_tokens=False)

        np.testing.assert_allclose(found, plain(sharp, bare, text, row.options), rtol=1e-4)


def test_a_long_row_loses_its_beginning(tokenizer: Any) -> None:
    row = asked("texts")[0]
    whole = Encoder(tokenizer, TEMPLATES["plain"], 500).row(row)
    assert whole.ids[-1] != tokenizer.eos_token_id
    assert not whole.cut
    short = Encoder(tokenizer, TEMPLATES["plain"], 20).row(row)
    assert (short.ids, short.scored, short.cut) == (whole.ids[-20:], whole.scored, True)
    with pytest.raises(ModelError, match="no answer token fits"):
        Encoder(tokenizer, TEMPLATES["plain"], 1).row(row)


def test_rows_have_lengths_of_their_own(sharp: Any, tokenizer: Any) -> None:
    row = asked("texts")[0]
    evaluator = Evaluator(
        {"set": [row, replace(row, max_length=20)]},
        tokenizer,
        TEMPLATES["plain"],
        TOFU,
        pad_id(tokenizer),
    )
    long, short = evaluator.sets["set"]
    assert (len(short.rows[0].ids), len(long.rows[0].ids) > 20) == (20, True)
    statistics = evaluator(sharp).statistics
    assert statistics is not None
    assert statistics.cut == 1


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("style", ["letters", "texts"])
def test_lm_eval_chooses_the_same_options(
    tmp_path: Path, sharp: Any, tokenizer: Any, style: Style, bos: bool
) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    tokenizer = copy.deepcopy(tokenizer)
    if not bos:  # which it adds by itself
        tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=False)
    assert (tokenizer("Ada")["input_ids"][0] == tokenizer.bos_token_id) is bos
    (tmp_path / "test").mkdir()
    lines = (row.model_copy(update={"choices": (*row.choices, "x", "y")[:4]}) for row in ROWS)
    text = "\n".join(line.model_dump_json() for line in lines)
    (tmp_path / "test/x.jsonl").write_text(text, encoding="utf-8")
    _, logprobs, _ = beside.harness(sharp, tokenizer, tmp_path, ["x"], style)
    rows = beside.questions(tmp_path, "x", style)
    found = beside.own_logprobs(evaluated(sharp, tokenizer, rows))
    np.testing.assert_allclose(found, logprobs["x"], atol=1e-4)


def test_rows_of_a_folder(tmp_path: Path) -> None:
    from pyarrow import Table as ArrowTable
    from pyarrow import parquet

    rows = [row.model_dump() for row in ROWS]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "hub").mkdir()
    table: Any = ArrowTable.from_pylist([row | {"subject": "x"} for row in rows])
    parquet.write_table(table, tmp_path / "hub/test-00000-of-00001.parquet")
    for name in ("lines", "hub"):
        found = choices(Tables(tmp_path, str(tmp_path)), Table("test", name))
        assert tuple(row for _, row in found) == ROWS
