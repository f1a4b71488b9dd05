"""Two processes share a step's rows and come to the numbers of one."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import Method
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.schema import (
    EvaluationSettings,
    MethodGrid,
    MethodSpec,
    ModelSettings,
    RetainSpec,
    SweepConfig,
)
from unlearnbench.evaluation.logs import read_log
from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.evaluation.summary import plan_of, summarize
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.limits import pad_id
from unlearnbench.models.source import Source
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.runs.prerequisites import model_evaluation
from unlearnbench.runs.workspace import Workspace
from unlearnbench.training.answer_sampling import Sampler
from unlearnbench.training.fine_tuning import FineTuner
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.reference_model import load_references
from unlearnbench.training.trainer import FineTuning, Trainer

from ...conftest import QUESTIONS
from ...forked import launch

pytestmark = pytest.mark.long

PROGRAM = """
import copy, json, pickle, sys
from dataclasses import replace
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM
from unlearnbench.base import distributed as group
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.base.errors import TrainingError
from unlearnbench.models.row_states import RowReader
from unlearnbench.base.fsdp import full_tensor, is_sharded
from unlearnbench.training.trainer import Trainer

torch.set_num_threads(1)
group.join_group()
cases, (forget, retain, refusals), attack = pickle.loads(Path(sys.argv[1]).read_bytes())
tuner, questions = attack
tuned = {"steps": 3, "learning_rate": 1e-2, "batch_size": 4}
more = {"text": (1, 2)}
rows = TrainingRows(forget, retain, len(refusals[0]), lambda q, a: refusals[q][a], refusals, **more)
start = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float64)
found = {}
ways = ("ddp", "fsdp") if group.world_size() > 1 else ("ddp",)
for way, (name, (objective, how, *rest)) in ((w, c) for w in ways for c in cases.items()):
    model = copy.deepcopy(start)
    given = (objective, rows, replace(how, parallel=way), *rest)
    trainer = Trainer(model, *given, starts_at_reference=True)
    assert is_sharded(trainer.model) == (way == "fsdp")
    steps = [step for epoch in (1, 2) for step in trainer.epoch(epoch)]
    with trainer.evaluation_model() as model:  # a forward pass needs no other process
        reader = RowReader(model, rest[0])
        hidden = reader(model, forget).hidden if group.is_main_process() else torch.zeros(1)
        assert reader.packs(model, forget)
        try:
            way == "fsdp" and next(tuner(model, questions, **tuned))
        except TrainingError as error:
            assert "sharded over processes" in str(error)
        else:
            assert way == "ddp"
    flat = torch.cat([full_tensor(p.detach()).flatten() for p in trainer.model.parameters()])
    found.setdefault(way, {})[name] = {
        "norms": [step.grad_norm for step in steps],
        "evaluated": float(hidden.norm()),
        "losses": [step.loss for step in steps],
        "terms": [{**step.terms, **step.reported} for step in steps],
        "state": dict(trainer.state),
        "weights": [float(flat.norm()), float(flat @ torch.linspace(-1, 1, len(flat)).double())],
    }
model = start.eval()  # as an attack trains it in each process, which is evaluated between steps
norms = [float(model(input_ids=torch.arange(3, 40)[None]).logits.detach().norm())
         for _ in tuner(model, questions, **tuned)]
Path(sys.argv[3]).write_text(json.dumps({**found, "attacked": norms}))
"""

Found = dict[str, dict[str, dict[str, Any]]]


def make_rows(tokenizer: Any, questions: tuple[Question, ...]) -> tuple[Any, ...]:
    """Seven rows to forget, so that two processes share them unequally; picklable."""
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    encoded = [encoder.row(q) for q in questions]
    texts = ("I do not know.", "That is beyond me, sorry.")
    refusals = [[encoder.row(q, text) for text in texts] for q in questions[:7]]
    return encoded[:7], encoded[7:], refusals


def case(
    name: str, model: Any, tokenizer: Any, rows: tuple[Any, ...], folder: Path, **how_much: Any
) -> tuple[Any, ...]:
    """Arguments of the program that trains `model` by the method `name`."""
    method: Method = registry.load("methods", name)(**how_much)
    # Samples that are all worth the same leave a gradient of rounding alone, which Adam enlarges.
    retain = RetainSpec(term="nll", weight=1.0) if method.needs.samples else None
    objective = Objective(method, retain)
    forget, retain, refusals = rows
    drawn = TrainingRows(forget, retain, 2, lambda q, a: refusals[q][a], refusals, text=(1, 2))
    # An odd last batch: 4 + 3 rows, of which the second process has one less.
    # Which weights decay must not depend on how they are shared, either.
    decay: dict[str, Any] = {"weight_decay": 1.0, "decay_norms_and_biases": False}
    how = TrainerSettings(2, 4, 1e-2, seed=3, micro_batch_size=1, **decay)
    needs = objective.needs
    references = load_references(
        lambda: model,
        "weights",
        drawn,
        needs,
        seed=how.seed,
        epochs=how.epochs or 0,
        pad=pad_id(tokenizer),
        folder=folder,
    )
    sampler = None
    if needs.samples is not None:
        encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
        given = (encoder, needs.samples, method.reward, how.seed, pad_id(tokenizer))
        sampler = Sampler(QUESTIONS[:7], *given)
    return model, objective, how, pad_id(tokenizer), references, sampler


def kind_of(method: Method) -> tuple[Any, ...]:
    """Kind of a method: all that it reads and does beside its loss of predictions."""
    needs = method.needed()
    reads = (needs.logprobs, needs.distributions, needs.states, needs.samples)
    parts = ("start", "advance", "statistics", "trains", "update_scale")
    does = (getattr(type(method), part) is not getattr(Method, part) for part in parts)
    return (*map(bool, reads), *does)


def test_two_processes_train_as_one(
    tmp_path: Path, model: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    """Each with all of the weights, and each with a part of them; a method of every kind.

    That every method counts over processes is a check of its conformance.
    """
    model, rows = model.double(), make_rows(tokenizer, questions)
    every = [name for name in registry.names("methods") if registry.trains(name)]
    names = {kind_of(registry.load("methods", name)()): name for name in every}.values()
    assert len(names) > 6
    model.save_pretrained(tmp_path / "model")
    compared = {"samples": 2, "max_new_tokens": 5, "beta": 0.1}
    # First, while its model can still be pickled: transformers' hooks for inner states cannot.
    cases = {"compared": case("grpo", model, tokenizer, rows, tmp_path, **compared)}
    for name in names:
        sampled = name.startswith("grpo")
        how = {"max_new_tokens": 5} if sampled else {}
        cases[name] = case(name, copy.deepcopy(model), tokenizer, rows, tmp_path, **how)
    without_models = {name: c[1:] for name, c in cases.items()}
    file = tmp_path / "cases"
    tuner = FineTuner(Encoder(tokenizer, TEMPLATES["plain"], 200), pad_id(tokenizer))
    file.write_bytes(pickle.dumps((without_models, rows, (tuner, questions))))
    words = [str(file), str(tmp_path / "model")]
    (alone,) = launch(PROGRAM, words, tmp_path, 1)
    both = launch(PROGRAM, words, tmp_path, 2)
    found = json.loads(alone.read_text())
    truth, attacked = found["ddp"], found["attacked"]
    assert set(truth) == {*names, "compared"}
    assert len({*attacked}) == 3
    for path in both:
        ways: Found = json.loads(path.read_text())
        assert ways.pop("attacked") == pytest.approx(attacked, rel=1e-8)
        assert set(ways["ddp"]) == set(ways["fsdp"]) == set(truth)
        for way, name in ((w, n) for w, found in ways.items() for n in found):
            got, what = ways[way][name], (way, name)
            for key in ("losses", "norms", "weights", *(["evaluated"] if path == both[0] else [])):
                assert got[key] == pytest.approx(truth[name][key], rel=1e-8), (*what, key)
            for mine, its in zip(got["terms"], truth[name]["terms"], strict=True):
                assert mine == pytest.approx(its, rel=1e-8, abs=1e-12), what
            assert got["state"] == pytest.approx(truth[name]["state"], rel=1e-8), what


KEPT = """
import pickle, sys
from dataclasses import replace
from pathlib import Path
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from unlearnbench.base import distributed as group
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.lora import add_lora
from unlearnbench.config.schema import LoRA
from unlearnbench.base.fsdp import gather_to_main
from unlearnbench.training.trainer import Trainer

torch.set_num_threads(1)
group.join_group()
(source, *case), (forget, retain, refusals) = pickle.loads(Path(sys.argv[1]).read_bytes())
rows = TrainingRows(forget, retain, len(refusals[0]), lambda q, a: refusals[q][a])
objective, how, *rest = case
folder = Path(sys.argv[1]).parent

def make(lora):
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64)
    torch.manual_seed(0)
    return add_lora(model, LoRA(rank=2)) if lora else model

def trainer(lora, way):
    return Trainer(make(lora), objective, rows, replace(how, parallel=way), *rest)

for lora in (False, True):
    if group.world_size() == 1:
        alone = trainer(lora, "ddp")
        for epoch in (1, 2):
            list(alone.epoch(epoch))
            alone.save(folder / f"one-{lora}-{epoch}")
        continue
    for way in ("ddp", "fsdp"):
        both = trainer(lora, way)
        list(both.epoch(1))
        both.save(folder / f"{way}-{lora}-1")
        both = trainer(lora, way)
        both.load(folder / f"one-{lora}-1")
        list(both.epoch(2))
        both.save(folder / f"{way}-{lora}-2")
        model = gather_to_main(both.accelerator.unwrap_model(both.model), lambda: make(lora))
        if group.is_main_process():
            trained = {f"model.{n}": p for n, p in model.named_parameters() if p.requires_grad}
            save_file({n: p.detach().clone() for n, p in trained.items()}, folder / f"{way}-{lora}")
Path(sys.argv[2]).touch()
group.leave_group()
"""


def test_a_checkpoint_of_one_process_serves_two_and_the_other_way_round(
    tmp_path: Path, model: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    """With all weights trained, and with adapters; and the whole model comes back."""
    model, rows = model.double(), make_rows(tokenizer, questions)
    model.save_pretrained(tmp_path / "model")
    _, *rest = case("npo", model, tokenizer, rows, tmp_path)
    file = tmp_path / "cases"
    file.write_bytes(pickle.dumps(((tmp_path / "model", *rest), rows)))
    for world in (1, 2):
        launch(KEPT, [str(file)], tmp_path, world)
    for way, lora in (("ddp", False), ("ddp", True), ("fsdp", False), ("fsdp", True)):
        for epoch in (1, 2):
            truth = load_file(tmp_path / f"one-{lora}-{epoch}")
            mine = load_file(tmp_path / f"{way}-{lora}-{epoch}")
            check_equal(mine, truth)
            assert sum(name.startswith("optimizer.") for name in mine) > 10
        trained = {name: t for name, t in truth.items() if name.startswith("model.")}
        check_equal(load_file(tmp_path / f"{way}-{lora}"), trained)


def check_equal(mine: dict[str, torch.Tensor], truth: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == truth.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, truth[name], rtol=1e-8, atol=1e-10, msg=name)


MIXED = """
import json, sys
from pathlib import Path
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from unlearnbench.base import distributed as group
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.token_row import Row
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.objective import Objective
from unlearnbench.base.fsdp import full_tensor
from unlearnbench.training.trainer import FineTuning, Trainer

torch.set_num_threads(1)
group.join_group()
size = dict(vocab_size=320, tie_word_embeddings=False)
llama = LlamaConfig(**size, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=2)
gpt2 = GPT2Config(**size, n_embd=64, n_layer=3, n_head=4, n_positions=32, bos_token_id=1,
                  eos_token_id=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
rows = TrainingRows(retain=[Row(tuple(range(3 + i, 12 + 2 * i)), 4) for i in range(8)])

found = {}
for make, config in ((LlamaForCausalLM, llama), (GPT2LMHeadModel, gpt2)):
    torch.manual_seed(0)
    model = make(config)
    model.config.use_cache = False
    model.requires_grad_(True)
    how = TrainerSettings(2, 4, 1e-3, seed=0, precision="bf16", parallel="fsdp")
    trainer = Trainer(model.train(), Objective(FineTuning()), rows, how, 0)
    steps = [*trainer.epoch(1)]
    ids = torch.arange(3, 13).unsqueeze(0)
    products = []
    for exact in (True, False):
        with trainer.evaluation_model(exact=exact) as own, torch.autocast("cpu", torch.bfloat16):
            products.append(own(ids).logits)
    steps += trainer.epoch(2)
    with trainer.evaluation_model() as evaluated:
        inside = {str(p.dtype) for p in evaluated.parameters()}
        logits = evaluated(ids).logits
    weights = {name: full_tensor(p.detach()) for name, p in trainer.model.named_parameters()}
    plain = make(config).eval()
    plain.load_state_dict(weights)
    found[make.__name__] = {
        "losses": [step.loss for step in steps], "norms": [step.grad_norm for step in steps],
        "inside": sorted(inside),
        "error": float((plain(ids).logits - logits).detach().abs().max()),
        "same": torch.equal(*products),
    }
Path(sys.argv[1]).write_text(json.dumps(found))
group.leave_group()
"""


def test_a_sharded_model_in_bf16_has_the_numbers_of_autocast(tmp_path: Path) -> None:
    """Layers are gathered in bf16, while an evaluation sees the fp32 weights to the last digit."""
    (alone,) = launch(MIXED, [], tmp_path, 1)
    both = launch(MIXED, [], tmp_path, 2)
    truth = json.loads(alone.read_text())
    for path in both:
        for name, got in json.loads(path.read_text()).items():
            for key in ("losses", "norms"):
                assert got[key] == pytest.approx(truth[name][key], rel=3e-3), (name, key)
            assert got["inside"] == ["torch.float32"], name
            assert got["error"] < 1e-5, name
            assert got["same"], "what autocast makes of the weights is what they are gathered in"


FLOAT16 = """
import json, sys
from pathlib import Path
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from unlearnbench.base import distributed as group
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.token_row import Row
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.objective import Objective
from unlearnbench.base.fsdp import full_tensor
from unlearnbench.training.trainer import FineTuning, Trainer

torch.set_num_threads(1)
group.join_group()
config = LlamaConfig(vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
                     num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
rows = TrainingRows(retain=[Row(tuple(range(3 + i, 12 + 2 * i)), 4) for i in range(8)])


class Overflowing(FineTuning):
    \"\"\"Overflows in the last process alone, as long as the scale is above 256.\"\"\"

    def loss(self, batch):
        value = super().loss(batch)
        is_last = group.rank() == group.world_size() - 1
        if is_last and value.requires_grad and trainer.passes.scale.value > 256:
            states = batch.retain.hidden
            # Its value is 0, its gradient is not finite in float16.
            value = value + 3e38 * (states - states.detach()).sum()
        return value


found = {}
for way in ("ddp", "fsdp") if group.world_size() > 1 else ("ddp",):
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    how = TrainerSettings(2, 4, 1e-3, seed=0, precision="fp16", parallel=way)
    trainer = Trainer(model.train(), Objective(Overflowing()), rows, how, 0)
    steps = [*trainer.epoch(1), *trainer.epoch(2)]
    weights = [full_tensor(p.detach()).flatten() for p in trainer.model.parameters()]
    found[way] = {
        "losses": [step.loss for step in steps], "norms": [step.grad_norm for step in steps],
        "scale": trainer.passes.scale.value, "overflows": trainer.passes.scale.overflows,
        "weights": float(torch.cat(weights).norm()),
    }
Path(sys.argv[1]).write_text(json.dumps(found))
group.leave_group()
"""


def test_processes_agree_that_a_gradient_in_float16_has_overflowed(tmp_path: Path) -> None:
    """It overflows in one of two, whose copies or shards of the weights stay those of one."""
    (alone,) = launch(FLOAT16, [], tmp_path, 1)
    truth = json.loads(alone.read_text())["ddp"]
    assert (truth["scale"], truth["overflows"]) == (256.0, 8)
    for path in launch(FLOAT16, [], tmp_path, 2):
        for way, got in json.loads(path.read_text()).items():
            assert (got["scale"], got["overflows"]) == (256.0, 8), way
            for key in ("losses", "norms"):
                assert got[key] == pytest.approx(truth[key], rel=2e-3), (way, key)
            assert got["weights"] == pytest.approx(truth["weights"], rel=1e-4), way


EVALUATED = """
import pickle, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM
from unlearnbench.base import distributed as group
from unlearnbench.evaluation.observation_file import write_observations
from unlearnbench.evaluation.precision import needs_stored_weights
from unlearnbench.base.fsdp import is_sharded
from unlearnbench.training.trainer import Trainer

torch.set_num_threads(1)
group.join_group()
folder, evaluator, given = pickle.loads(Path(sys.argv[1]).read_bytes())
trainer = Trainer(AutoModelForCausalLM.from_pretrained(folder), *given)
assert is_sharded(trainer.model)
for precision in ("bf16", "fp32"):
    evaluator.precision = precision
    exact = needs_stored_weights(trainer.model, precision, "bf16")
    with trainer.evaluation_model(exact=exact) as model:
        held = {p.dtype for p in model.parameters() if p.ndim == 2}
        assert (torch.bfloat16 in held) == (precision == "bf16")
        write_observations(evaluator(model), Path(f"{sys.argv[2]}.{precision}.safetensors"))
group.leave_group()
"""


def test_an_evaluation_has_one_precision(
    tmp_path: Path, tokenizer: Any, model: Any, questions: tuple[Question, ...]
) -> None:
    """After bf16 training, of the same weights loaded anew as an anchor, and of two processes."""
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    settings = ModelSettings(name="small", base=str(tmp_path / "start"), template="plain")
    config = SweepConfig(
        name="small",
        models=(settings,),
        forget_fractions=(0.5,),
        methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
        data=Synthetic(authors=2, questions_per_author=2, pretraining_authors=0),
        evaluation=EvaluationSettings(precision="bf16", rows=2, max_length=120),
    )
    space = Workspace(config, tmp_path)
    evaluator = space.evaluator("small", 0.5)
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    rows = TrainingRows(retain=[encoder.row(q) for q in questions[:4]])
    how = TrainerSettings(1, 2, 1e-3, seed=0, precision="bf16", parallel="fsdp")
    given = (Objective(FineTuning()), rows, how, pad_id(tokenizer))
    trainer = Trainer(model, *given)
    [*_] = trainer.epoch(1)
    with trainer.evaluation_model() as trained:
        tree = evaluator.sets["forget"][0].tree
        predictor = Predictor(trained, tree, pad=0, longest=120, precision="bf16")
        assert predictor.layer is not None
        assert predictor.packed
        mine = {"bf16": evaluator(trained)}
        evaluator.precision = "fp32"
        mine["fp32"] = evaluator(trained)
        evaluator.precision = "bf16"
        trained.save_pretrained(tmp_path / "trained")
    assert mine["bf16"].precision == "float32 under bfloat16"
    assert mine["fp32"].precision == "float32"
    anchor = model_evaluation(space, "small", Source(str(tmp_path / "trained")), 0.5)
    found = [("anchor", "bf16", anchor)]
    file = tmp_path / "given"
    file.write_bytes(pickle.dumps((tmp_path / "trained", evaluator, given)))
    for rank, log in enumerate(launch(EVALUATED, [str(file)], tmp_path, 2)):
        for precision in mine:
            found.append(
                (f"process {rank}", precision, read_log(Path(f"{log}.{precision}.safetensors")))
            )
    for name, precision, other in found:
        one, what = mine[precision], (name, precision)
        assert other.precision == one.precision, what
        wanted = summarize(one, None, space.profile)
        measured = summarize(other, None, space.profile)
        for metric in plan_of(space.profile).own:  # a log has no values by token, and no holdout
            close = pytest.approx(wanted[metric], abs=1e-6, nan_ok=True)
            assert measured[metric] == close, (*what, metric)
        for key, seen in other.sets.items():
            assert seen.generated == one.sets[key].generated, what
