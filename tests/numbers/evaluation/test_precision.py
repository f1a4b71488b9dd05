"""The precision of an evaluation: resolved, stored, and never compared across."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from unlearnbench import evaluate_model, get_profile, summarize
from unlearnbench.api.benchmark import Question
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.errors import EvaluationError, RecordError
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.plan import make_plan
from unlearnbench.config.precision import resolve_precision
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.resources import Resources
from unlearnbench.config.schema import (
    EvaluationSettings,
    MethodGrid,
    MethodSpec,
    ModelSettings,
    SweepConfig,
)
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.evaluation import prefix_tree as tree_module
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.precision import precision_of_model
from unlearnbench.evaluation.predictor import Predictor, tie_gap
from unlearnbench.evaluation.prefix_tree import _indices, build_tree  # pyright: ignore[reportPrivateUsage]
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.token_row import Row
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import (
    EpochResult,
    Record,
    run_record,
    write_record,
)
from unlearnbench.runs.prerequisites import preparation_tasks
from unlearnbench.runs.workspace import Workspace

DATA = Synthetic(authors=4, questions_per_author=2, pretraining_authors=0)
PROFILE = get_profile("tofu", rows=2, max_length=200)


def evaluated(model: Any, tokenizer: Any) -> Evaluation:
    return evaluate_model(model, data=DATA, forget=0.25, profile=PROFILE, tokenizer=tokenizer)


def test_it_is_that_of_most_weights_and_of_autocast(model: Any) -> None:
    assert precision_of_model(model) == "float32"
    with torch.autocast("cpu", torch.bfloat16):
        assert precision_of_model(model) == "float32 under bfloat16"
    model.to(torch.bfloat16)
    model.model.norm.to(torch.float32)  # as adapters and norms are, around weights of bfloat16
    assert precision_of_model(model) == "bfloat16"


def test_two_precisions_do_not_compare_and_an_unknown_one_does(model: Any, tokenizer: Any) -> None:
    one = evaluated(model, tokenizer)
    other = dataclasses.replace(one, precision="bfloat16")
    with pytest.raises(EvaluationError, match="in float32, the retain model in bfloat16"):
        summarize(one, other, PROFILE)
    unknown = dataclasses.replace(one, precision=None)  # a published log
    assert summarize(one, unknown, PROFILE)["ks_statistic"] == 0
    assert summarize(unknown, other, PROFILE)["ks_statistic"] == 0


def config(**changes: Any) -> SweepConfig:
    return SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny", **changes.pop("model", {})),),
        forget_fractions=(0.1,),
        methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
        **changes,
    )


def record_of(**changes: Any) -> Record:
    """A run as it is planned, evaluated once."""
    (run,) = make_plan(config(**changes), "d1").runs
    found = EpochResult(1, {"model_utility": 0.5}, 1.0, 1.0)
    return run_record(run, status="finished", profile=TOFU.id, epochs=(found,))


def anchor_of(precision: str | None, record_id: str = "5a5a") -> Record:
    return dataclasses.replace(
        record_of(), id=record_id, kind="fine-tuned", spec={}, precision=precision
    )


def test_only_runs_that_were_judged_under_autocast_are_other_runs_now() -> None:
    (plain,) = make_plan(config(), "d1").runs
    assert "precision" not in plain.identity["evaluation"]
    (bf16,) = make_plan(config(training=TrainingSettings(precision="bf16")), "d1").runs
    assert bf16.identity["evaluation"]["precision"] == "float32"


def test_a_panel_holds_one_precision() -> None:
    run, other = record_of(), record_of(model={"dtype": "bfloat16"})
    with pytest.raises(RecordError, match=r"tiny, forget 10 %: records of different precisions"):
        table_of([run, other])
    named = dataclasses.replace(other, model="tiny-bf16")
    assert len(table_of([run, named]).rows) == 2, "another model's panel"
    assert len(table_of([run, anchor_of(None)]).rows) == 2, "not known"


@pytest.mark.parametrize(
    ("device", "weights", "setting", "found"),
    [
        ("cpu", "float32", None, "float32"),
        ("cuda", "float32", None, "float32 under bfloat16"),
        ("cuda", "float32", "fp32", "float32"),
        ("cpu", "float32", "bf16", "float32 under bfloat16"),
        ("cpu", "bfloat16", None, "bfloat16"),
        ("cuda", "bfloat16", "bf16", "bfloat16"),
        ("cuda", "float64", None, "float64"),
        ("cuda", "float32", "fp16", "float32 under float16"),
        ("cuda", "float16", None, "float16"),
        ("cpu", "float16", "fp16", "float16"),
    ],
)
def test_the_precision_follows_from_the_device_unless_it_is_chosen(
    device: str, weights: str, setting: Any, found: str
) -> None:
    assert resolve_precision(device, weights, setting) == found


def test_the_precision_is_that_of_predictions(
    model: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    """The output layer is understood, rows are packed, near logits are ties, keys are in bf16."""
    evaluator = evaluator_of(tokenizer, questions, "bf16")
    item = evaluator.sets["forget"][0]
    predictor = Predictor(model, item.tree, pad=0, longest=200, precision="bf16")
    assert predictor.packed
    assert predictor.layer is not None
    assert predictor.dtype == torch.bfloat16
    assert tie_gap(predictor.dtype) == 0.25
    exact = evaluator_of(tokenizer, questions, None)(model)
    mixed = evaluator(model)
    whole = evaluator(model.to(torch.bfloat16))
    assert mixed.precision == "float32 under bfloat16"
    losses = [found.sets["retain"].answer_loss for found in (exact, mixed, whole)]
    for i, j in ((0, 1), (0, 2), (1, 2)):  # three precisions, not two
        difference = np.abs(losses[i] - losses[j]).max()
        assert 1e-4 < difference < 0.5
    with pytest.raises(EvaluationError, match="in float32 under bfloat16, the retain model in bf"):
        summarize(mixed, whole, get_profile("tofu", max_length=80))


@pytest.mark.parametrize(
    ("weights", "precision", "name"),
    [(torch.float32, "fp16", "float32 under float16"), (torch.float16, None, "float16")],
)
def test_an_evaluation_in_float16_is_nearer_to_float32_than_one_in_bfloat16(
    weights: torch.dtype,
    precision: Any,
    name: str,
    model: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
) -> None:
    exact = evaluator_of(tokenizer, questions, None)(model)
    rough = evaluator_of(tokenizer, questions, "bf16")(model)
    half = evaluator_of(tokenizer, questions, precision)(model.to(weights))
    assert half.precision == name
    for set_name, found in half.sets.items():
        wanted = exact.sets[set_name].answer_loss
        away = np.abs(found.answer_loss - wanted).max()
        assert 0 < away < 0.02
        assert away < np.abs(rough.sets[set_name].answer_loss - wanted).max()
        # 16 bits of a log-probability would be multiples of 2⁻⁹ at losses from 4 to 8.
        assert found.answer_loss.dtype.itemsize >= 4
        assert (found.answer_loss * 2**9 % 1 != 0).any()


def evaluator_of(tokenizer: Any, questions: tuple[Question, ...], precision: Any) -> Evaluator:
    sets: Any = {"retain": questions[4:7], "forget": questions[:4]}
    sets |= {"real_authors": questions[7:9], "world_facts": questions[9:]}
    profile = get_profile("tofu", max_length=80)
    return Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, 0, 500, precision)


def test_a_precision_that_is_chosen_makes_other_runs_and_anchors(tmp_path: Path) -> None:
    ids: dict[str, set[Any]] = {"runs": set(), "anchors": set()}
    for chosen in ({}, {"precision": None}, {"precision": "fp32"}, {"precision": "bf16"}):
        evaluation = EvaluationSettings.model_validate(chosen)
        settings = config(evaluation=evaluation, cache=str(tmp_path), data=DATA)
        settings = settings.model_copy(update={"forget_fractions": (0.25,)})
        (run,) = make_plan(settings, "d1").runs
        ids["runs"].add(run.id)
        ids["anchors"].add(
            Workspace(settings, tmp_path).baselines.evaluation_id("tiny", "full", 0.25)
        )
        assert ("precision" in run.identity["evaluation"]) == bool(chosen.get("precision"))
        wanted = {"bf16": "float32 under bfloat16"}.get(str(chosen.get("precision")), "float32")
        assert run_record(run, status="finished").precision == wanted
    assert [len(found) for found in ids.values()] == [3, 3]


def test_a_type_of_published_weights_makes_another_anchor(tmp_path: Path) -> None:
    published = tmp_path / "published"
    published.mkdir()
    (published / "config.json").write_text("{}", encoding="utf-8")
    ids: set[str] = set()
    for dtype in ("float32", "bfloat16"):
        model = ModelSettings(name="tiny", base="tiny", fine_tuned=str(published), dtype=dtype)
        settings = config(cache=str(tmp_path / "cache"), data=DATA)
        settings = settings.model_copy(update={"models": (model,), "forget_fractions": (0.25,)})
        ids.add(Workspace(settings, tmp_path).baselines.evaluation_id("tiny", "full", 0.25))
    assert len(ids) == 2


def test_the_precision_of_a_run_on_a_gpu_is_not_guessed_elsewhere() -> None:
    (run,) = make_plan(config(), "d1").runs
    failed = run_record(run, status="failed")
    assert failed.precision is None
    assert [failed.provenance[name] for name in ("host", "device")] == [None, None]
    (run,) = make_plan(config(evaluation=EvaluationSettings(precision="fp32")), "d1").runs
    assert run_record(run, status="failed").precision == "float32"


@pytest.mark.parametrize("gpu", [0, 1])
def test_anchors_of_the_other_kind_of_device_are_refused(gpu: int, tmp_path: Path) -> None:
    settings = config(resources=Resources(gpu=gpu), cache=str(tmp_path), data=DATA)
    settings = settings.model_copy(update={"forget_fractions": (0.25,)})
    space = Workspace(settings, tmp_path)
    runs = make_plan(settings, "d1").runs
    precisions = ("float32", "float32 under bfloat16")
    for i, precision in enumerate(precisions):
        key = space.baselines.evaluation_id("tiny", "full", 0.25)
        shutil.rmtree(tmp_path / "records", ignore_errors=True)
        write_record(anchor_of(precision, key), tmp_path)
        if i == gpu:
            assert any(task.done for task in preparation_tasks(settings, runs, tmp_path))
        else:
            with pytest.raises(EvaluationError, match=f"in {precision}, runs in {precisions[gpu]}"):
                preparation_tasks(settings, runs, tmp_path)


def rounded(split: int) -> tuple[Any, Any]:
    """`linear` and attention as of a GPU in bf16: of few rows, sums are of `split` parts."""
    exact, attention = functional.linear, functional.scaled_dot_product_attention

    def half(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.bfloat16).float()

    def linear(
        given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        parts = split if given.numel() // given.shape[-1] <= 190 else 1
        pairs = zip(half(given).chunk(parts, -1), half(weight).chunk(parts, -1), strict=True)
        with torch.autocast("cpu", enabled=False):
            found = torch.stack([exact(*pair) for pair in pairs]).sum(0).to(torch.bfloat16)
        return found if bias is None else found + bias.to(found.dtype)

    def attend(*given: torch.Tensor, attn_mask: torch.Tensor | None = None, **how: Any) -> Any:
        mask = None if attn_mask is None else attn_mask.float()
        query, key, value = (half(one) for one in given)
        return attention(query, key, value, attn_mask=mask, **how).to(torch.bfloat16)

    return linear, attend


def off_by_one(group: Any) -> Any:
    """Tokens see the one that comes next."""
    queries, keys, hidden = _indices(group)
    hidden[:, :, 1:] = hidden[:, :, :-1].copy()
    return queries, keys, hidden


def one_off(group: Any) -> Any:
    """The tokens of one branch do not see their parents."""
    queries, keys, hidden = _indices(group)
    for token, last in enumerate((~hidden[-1]).sum(1) - 1):
        hidden[-1, token, max(last - 1, 0)] = last > 0
    return queries, keys, hidden


@pytest.mark.parametrize("split", [1, 4])
@pytest.mark.parametrize(("size", "layers"), [(64, 2), (96, 6)])
def test_packing_survives_products_that_depend_on_the_number_of_rows(
    size: int, layers: int, split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a layout that is wrong by a token does not, in the same rounding."""
    shape: dict[str, Any] = {"vocab_size": 2000, "hidden_size": size, "intermediate_size": 4 * size}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=layers, num_attention_heads=2))
    prompt = tuple(range(3, 35))
    answers = [tuple((40 + 7 * i + j) % 1900 + 3 for j in range(25)) for i in range(6)]
    tree = build_tree([Row((*prompt, *answer, 2), len(prompt)) for answer in answers], prompt)
    assert len(tree.ids) <= 190 < sum(len(row.ids) - 1 for row in tree.rows)
    linear, attend = rounded(split)
    monkeypatch.setattr(functional, "linear", linear)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    for precision in ("bf16", None):  # None: rounding that nothing here knows of
        found = [Predictor(model.eval(), tree, pad=0, longest=100, precision=precision).packed]
        for wrong in (off_by_one, one_off):
            with monkeypatch.context() as patched:
                patched.setattr(tree_module, "_indices", wrong)
                found.append(Predictor(model, tree, pad=0, longest=100, precision=precision).packed)
        assert found == [True, False, False]
