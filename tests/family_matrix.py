"""Every use of a model of every family, compared with plain transformers and PEFT.

    python -m tests.family_matrix            # the table, in Markdown
    python -m tests.family_matrix llama gpt2 # of some families

The reference reads one row at a time, without padding, packing or caches, and takes its steps with
torch's own AdamW. Weights are in float64, except where a use is about files or about rounding.
"""

from __future__ import annotations

import copy
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tests.conftest import QUESTIONS
from tests.families import FAMILIES
from unlearnbench.api.method import Sampling
from unlearnbench.attacks.quantization import Quantization
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.schema import LoRA, ModelSettings
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.lora import add_lora, load_any_model
from unlearnbench.models.source import Source
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.tiny import build_tokenizer
from unlearnbench.models.token_row import Row
from unlearnbench.models.token_sampling import Distribution, choose, uniform_numbers
from unlearnbench.runs.request_sequence import save_weights
from unlearnbench.stats.quantized_weights import NF4
from unlearnbench.training.answer_sampling import SeededPrompt, sample
from unlearnbench.training.fine_tuning import FineTuner
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.trainer import FineTuning, Trainer

LIMIT = {torch.float64: 1e-9, torch.float32: 3e-5}
"""Largest relative difference."""
ROUNDED = frozenset(
    {
        *("llama4", "gemma", "gemma2", "gemma3", "gemma3-vision", "cohere"),  # norms
        *("gemma2", "gpt-j", "gpt-neo", "bloom", "mpt"),  # softmax
        *("deepseek-v3", "mamba"),  # scores of routers, recurrence
    }
)
"""Families that compute a part in float32, whatever the type of their weights is."""
TINY_FAMILIES = ("llama", "gemma3", "qwen3", "phi3", "gpt2", "mixtral", "mamba", "gpt-oss")
"""Those of `make test`."""
_RATE = 1e-3
_STEPS = 2
_LONGEST = 64
"""Tokens of an answer with its prompt, far more than windows and chunks have."""
_SAMPLED = 16
"""Tokens of a sampled answer."""
_BLOCK = 64


Targets = tuple[str, ...] | Literal["all-linear"]


class Refused(Exception):
    """What plain transformers or PEFT cannot do either."""


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    """A byte-level BPE, as of the fixture of this name."""
    return build_tokenizer([f"Question: {q.question}\nAnswer: {q.answer}" for q in QUESTIONS], 330)


@lru_cache(maxsize=1)
def training_rows() -> tuple[Row, ...]:
    """Rows of unequal length."""
    encoder = Encoder(tokenizer(), TEMPLATES["plain"], 200)
    return tuple(encoder.row(question) for question in QUESTIONS[:6])


def fresh(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """A model of the family, always with the same weights."""
    model = FAMILIES[name].build()
    if dtype == torch.float64 and "experts" in " ".join(n for n, _ in model.named_modules()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # The grouped product of torch takes no float64.
            model.set_experts_implementation("eager")
    return model.to(dtype)


def evaluated(name: str, dtype: torch.dtype = torch.float64) -> float:
    """Losses of answers; infinite if a greedy answer differs."""
    model = fresh(name, dtype)
    profile = get_profile("tofu", max_length=_LONGEST)
    evaluator = Evaluator(
        {"forget": QUESTIONS[:3]}, tokenizer(), TEMPLATES["plain"], profile, 0, 400
    )
    found = evaluator(model)
    result, answers = found.sets["forget"], cast("Any", found.answers)["forget"]
    worst = 0.0
    for i, item in enumerate(evaluator.sets["forget"]):
        ours = [result.answer_loss[i], result.base_loss[i], *result.perturbed_loss[i].tolist()]
        for row, loss in zip(item.rows, ours, strict=True):
            expected = float(_loss(model, row, reduction="mean").detach())
            worst = max(worst, abs(loss - expected) / abs(expected))
        if answers[i] != _greedy(model, item.prompt):
            return math.inf
    return worst


def _loss(model: Any, row: Row, reduction: str = "sum") -> Tensor:
    logits = model(input_ids=torch.tensor([row.ids])).logits[0, row.start - 1 : -1]
    labels = torch.tensor(row.ids[row.start :])
    # Some models return float32 logits of float64 states, and sums of these are compared.
    return nn.functional.cross_entropy(logits.double(), labels, reduction=reduction)


@torch.no_grad()
def _greedy(model: Any, prompt: Sequence[int]) -> tuple[int, ...]:
    ids = list(prompt)
    while len(ids) < _LONGEST:
        token = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        if token == tokenizer().eos_token_id:
            break
        ids.append(token)
    return tuple(ids[len(prompt) :])


def sampled(name: str) -> float:
    """Answers that training samples, with a cache and padding; infinite if a token differs."""
    model = fresh(name, torch.float32)
    encoder = Encoder(tokenizer(), TEMPLATES["plain"], 200)
    asked = [SeededPrompt(encoder.prompt(q), (1, i)) for i, q in enumerate(QUESTIONS[:3])]
    answers = sample(model, asked, Sampling(1, max_new_tokens=_SAMPLED), encoder, 0)
    for one, answer in zip(asked, answers, strict=True):
        known = one.prompt
        for number in uniform_numbers(one.seed, _SAMPLED)[: len(answer)]:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([known])).logits[:, -1]
            known = (*known, int(choose(logits, Distribution(1.0), torch.tensor([number]))))
        if known != one.prompt + answer:
            return math.inf
    return 0.0


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _plain_steps(model: Any, rows: Sequence[Row], trained: Iterable[str]) -> dict[str, Tensor]:
    """Gradients of the first step, by the weights that are `trained`; takes all steps."""
    weights = {name: p for name, p in model.named_parameters() if name in {*trained}}
    optimizer = torch.optim.AdamW(weights.values(), lr=_RATE, weight_decay=0.0)
    model.train()
    tokens = sum(row.scored for row in rows)
    first: dict[str, Tensor] = {}
    for _ in range(_STEPS):
        optimizer.zero_grad()
        for row in rows:
            (_loss(model, row) / tokens).backward()
        # A weight that nothing reaches has none.
        gradients = {n: p.grad.clone() for n, p in weights.items() if p.grad is not None}
        first = first or gradients
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimizer.step()
    model.eval()
    return first


def _largest_difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The largest difference of two sets of tensors, relative to the largest number in them."""
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    scale = max(float(tensor.double().abs().max()) for tensor in theirs.values())
    pairs = ((ours[name].double(), theirs[name].double()) for name in theirs)
    return max(float((one - other).abs().max()) for one, other in pairs) / scale


def _trained_difference(name: str, model: Any, reference: Any) -> float:
    """Train `model` by the trainer and `reference` plainly, from the same weights."""
    rows = training_rows()
    before = _weights(reference)
    settings = TrainerSettings(
        epochs=_STEPS, batch_size=len(rows), learning_rate=_RATE, seed=0, weight_decay=0.0
    )
    data = TrainingRows(retain=rows)
    trainer = Trainer(model, Objective(FineTuning()), data, settings, 0)
    with _first_gradients() as ours:
        for epoch in range(1, _STEPS + 1):
            list(trainer.epoch(epoch))
    model.eval()
    may_train = [n for n, p in reference.named_parameters() if p.requires_grad]
    return _difference_of_training(name, model, reference, ours, before, may_train)


@contextmanager
def _first_gradients() -> Generator[dict[str, Tensor], None, None]:
    """Collect the gradients of the first step of a trainer in the block, before clipping."""
    found: dict[str, Tensor] = {}
    name = "_clip"
    clip = getattr(Trainer, name)

    def watched(trainer: Trainer) -> Tensor:
        if not found:
            found.update({n: cast("Tensor", p.grad).clone() for n, p in trainer.trained().items()})
        return cast("Tensor", clip(trainer))

    setattr(Trainer, name, watched)
    try:
        yield found
    finally:
        setattr(Trainer, name, clip)


def _difference_of_training(
    name: str,
    model: Any,
    reference: Any,
    gradients: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    may_train: Iterable[str],
) -> float:
    """Train the `reference`; compare the first gradients, and what all steps did to the weights."""
    expected = _plain_steps(reference, training_rows(), may_train)
    difference = _largest_difference(gradients, expected)
    if name in ROUNDED:
        # Adam divides a gradient by its size, so rounding decides the steps of weights whose
        # gradient is almost 0.
        return difference
    moved, moved_plainly = (
        {n: p - before[n] for n, p in _weights(trained).items()} for trained in (model, reference)
    )
    return max(difference, _largest_difference(moved, moved_plainly))


def all_weights(name: str) -> float:
    """Training of all weights."""
    return _trained_difference(name, fresh(name), fresh(name))


def _adapted(name: str, targets: Targets, parameters: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """A model with adapters by us, and one by peft alone, with equal weights."""
    import peft

    reference = fresh(name)
    names: Any = targets if isinstance(targets, str) else list(targets)
    more: dict[str, Any] = {"target_parameters": list(parameters)} if parameters else {}
    if name == "llama4" and targets == "all-linear":
        # The router is a linear layer with two outputs, which peft cannot adapt.
        more["exclude_modules"] = ["router"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft calls transformers by deprecated names
        config = peft.LoraConfig(
            r=2, lora_alpha=4, target_modules=names, task_type="CAUSAL_LM", **more
        )
        try:
            theirs = peft.get_peft_model(reference, config)
        except ValueError as error:
            raise Refused(str(error)) from error
        settings = LoRA(rank=2, alpha=4, target_modules=targets, target_parameters=parameters)
        ours = add_lora(fresh(name), settings)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        for _, parameter in theirs.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def lora_on_all_linear_layers(name: str) -> float:
    """Training of adapters on all linear layers."""
    return _trained_difference(name, *_adapted(name, "all-linear"))


def lora_on_names(name: str) -> float:
    """Training of adapters on the layers that a list names."""
    return _trained_difference(name, *_adapted(name, FAMILIES[name].lora_targets))


def lora_on_experts(name: str) -> float:
    """Training of adapters on parameters that hold the matrices of experts."""
    place = "feed_forward" if name == "llama4" else "mlp"
    parameters = (f"{place}.experts.gate_up_proj", f"{place}.experts.down_proj")
    return _trained_difference(name, *_adapted(name, FAMILIES[name].lora_targets, parameters))


@torch.no_grad()
def _logits(model: Any) -> Tensor:
    rows = training_rows()
    return torch.cat([model(input_ids=torch.tensor([row.ids])).logits[0].double() for row in rows])


def _logits_difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _nearest(matrix: Tensor) -> Tensor:
    """NF4 by its definition: of each 64 numbers, the code nearest to w / max|w|."""
    line = matrix.reshape(-1).float()
    padded = nn.functional.pad(line, (0, -len(line) % _BLOCK)).view(-1, _BLOCK)
    scale = padded.abs().amax(1, keepdim=True)
    scaled = padded / scale.clamp(min=1e-38)
    codes = torch.tensor(NF4)
    chosen = codes[(scaled.unsqueeze(2) - codes).abs().argmin(2)]
    return (chosen * scale).reshape(-1)[: len(line)].view(matrix.shape).to(matrix.dtype)


@torch.no_grad()
def quantised(name: str) -> float:
    """Logits of the model whose weights the attack has rounded."""
    model, reference = fresh(name, torch.float32), fresh(name, torch.float32)
    hidden = reference.config.get_text_config().hidden_size
    output = reference.get_output_embeddings()
    tied = reference.get_input_embeddings().weight
    for module in reference.modules():
        if isinstance(module, nn.Linear | Conv1D):
            weight: Tensor = module.weight
            if module is not output and weight is not tied:
                is_transposed = isinstance(module, Conv1D)
                matrix = weight.T if is_transposed else weight
                matrix.copy_(_nearest(matrix))
        elif type(module).__name__.endswith("Experts"):
            for part in ("gate_up_proj", "down_proj"):
                stack: Tensor = getattr(module, part)
                inputs = (
                    hidden if part == "gate_up_proj" else stack.numel() // (len(stack) * hidden)
                )
                for matrix in stack:
                    by_output = matrix if matrix.shape[1] == inputs else matrix.T
                    by_output.copy_(_nearest(by_output))
    tools: Any = None  # the attack uses none
    next(iter(Quantization().change(model, tools)))
    return _logits_difference(_logits(model), _logits(reference))


def relearned(name: str) -> float:
    """Weights after the attack that trains on rows again."""
    model, reference = fresh(name), fresh(name)
    before, rows = _weights(reference), training_rows()
    tuner = FineTuner(Encoder(tokenizer(), TEMPLATES["plain"], 200), 0)
    options: Any = {"steps": _STEPS, "learning_rate": _RATE, "batch_size": len(rows)}
    with _first_gradients() as ours:
        for _ in tuner(model, QUESTIONS[: len(rows)], **options):
            pass
    return _difference_of_training(name, model, reference, ours, before, before)


def _loaded(folder: str) -> Any:
    settings = ModelSettings(name="m", base=folder, template="plain")
    return load_any_model(Source(folder), settings)


def exported(name: str) -> float:
    """Logits of a model that was written and loaded again, here and by transformers."""
    from transformers import AutoModelForCausalLM

    model = fresh(name, torch.float32)
    expected = _logits(model)
    spec: Any = SimpleNamespace(model=ModelSettings(name="m", base="m"))
    with tempfile.TemporaryDirectory() as folder:
        save_weights(model, spec, Path(folder))
        plain: Any = AutoModelForCausalLM.from_pretrained(folder)
        models = [_loaded(folder), plain.eval()]
    return max(_logits_difference(_logits(other), expected) for other in models)


def exported_with_adapters(name: str) -> float:
    """Logits of adapters that were merged and written, and of adapters that were written.

    Both are held against what PEFT does with the same adapters. A merged layer rounds otherwise
    than a layer with an adapter beside it.
    """
    ours, theirs = (model.float() for model in _adapted(name, FAMILIES[name].lora_targets))
    expected = _logits(theirs)
    expected_merged = _logits(copy.deepcopy(theirs).merge_and_unload())
    spec: Any = SimpleNamespace(model=ModelSettings(name="m", base="m", lora=LoRA(rank=2, alpha=4)))
    worst = _logits_difference(_logits(ours), expected)
    with tempfile.TemporaryDirectory() as folder:
        base, adapter, merged = (Path(folder, part) for part in ("base", "adapter", "merged"))
        fresh(name, torch.float32).save_pretrained(base)
        for item in ours.peft_config.values():
            item.base_model_name_or_path = str(base)
        save_weights(copy.deepcopy(ours), spec, adapter, adapter=True)
        save_weights(ours, spec, merged)
        for place, of_peft in ((adapter, expected), (merged, expected_merged)):
            worst = max(worst, _logits_difference(_logits(_loaded(str(place))), of_peft))
    return worst


USES: Mapping[str, Callable[[str], float]] = {
    "evaluated": evaluated,
    "evaluated, float32": lambda name: evaluated(name, torch.float32),
    "sampled": sampled,
    "all weights": all_weights,
    "LoRA, all linear layers": lora_on_all_linear_layers,
    "LoRA, names": lora_on_names,
    "quantised": quantised,
    "relearned": relearned,
    "exported": exported,
    "exported, LoRA": exported_with_adapters,
}
"""By the name of the table's column."""
_ALWAYS_FLOAT32 = frozenset(
    {"evaluated, float32", "sampled", "quantised", "exported", "exported, LoRA"}
)


def limit(name: str, use: str) -> float:
    """The largest difference that a cell may have."""
    is_exact = use not in _ALWAYS_FLOAT32 and name not in ROUNDED
    return LIMIT[torch.float64 if is_exact else torch.float32]


def cell(name: str, use: str) -> str:
    """The difference, or the call that fails in plain PEFT."""
    try:
        return f"{USES[use](name):.1e}"
    except Refused as error:
        return f"refused: {str(error)[:80]}"


def table(names: Iterable[str]) -> str:
    """Families by uses, in Markdown."""
    lines = ["| family | " + " | ".join(USES) + " |", "|---" * (1 + len(USES)) + "|"]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(cell(name, use) for use in USES) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(sys.argv[1:] or FAMILIES))
