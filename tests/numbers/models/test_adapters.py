"""Adapter folders, against plain transformers and PEFT: evaluated, merged and trained further."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench import evaluate_model, get_profile
from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import ModelError
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.entries import attack_specs
from unlearnbench.config.schema import LoRA, ModelSettings, SweepConfig
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.loading import load_model
from unlearnbench.models.lora import merged
from unlearnbench.models.lora_check import check_targets
from unlearnbench.models.named_models import source_of
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.source import Source
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.whole_model import load_tokenizer
from unlearnbench.runs.evaluate_model import set_up
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.run import run_single
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.reference_model import load_references
from unlearnbench.training.trainer import Trainer

from ...factories.marks import diagonals_in_make_test, some_in_make_test
from ...factories.trainers import objective_of, training_rows
from ...families import FAMILIES
from ...flow.small_run import config_of, runs_of

peft: Any = pytest.importorskip("peft")
DATA = Synthetic(authors=4, questions_per_author=2, pretraining_authors=0)
PROFILE = get_profile("tofu", rows=2, max_length=120)
KINDS: dict[str, dict[str, Any]] = {
    "layers": {"target_modules": ["q_proj", "down_proj"]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "only-embedding": {"target_modules": ["embed_tokens"]},
    "output": {"target_modules": ["q_proj", "lm_head"]},
    "both": {"target_modules": ["embed_tokens", "lm_head"]},
    "whole-embedding": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "whole-output": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "whole-both": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [5, 40, 77]},
    "tokens-by-name": {
        "target_modules": ["q_proj"],
        "trainable_token_indices": {"embed_tokens": [5, 40, 77]},
    },
}
TIED = [True, False]


@pytest.fixture
def folders(tmp_path: Path, model: Any, tokenizer: Any) -> Callable[..., tuple[Path, Path]]:
    """Makes the folders of a base model and of an adapter on it that changes every answer."""

    def make(kind: str, tied: bool) -> tuple[Path, Path]:
        base, adapter = tmp_path / "base", tmp_path / "adapter"
        own = copy.deepcopy(model)
        if not tied:
            own.config.tie_word_embeddings = False
            output = own.get_output_embeddings()
            output.weight = torch.nn.Parameter(output.weight.detach().flip(0).clone())
        own.save_pretrained(base)
        tokenizer.save_pretrained(base)
        save_adapter(base, adapter, **KINDS[kind])
        return base, adapter

    return make


def plain_base(base: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(base).eval()


def quietly(make: Callable[[], Any]) -> Any:
    """What plain PEFT returns, without its warnings: ours are errors of the tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def save_adapter(base: Path, adapter: Path, seed: int = 1, **kind: Any) -> None:
    """Save a trained adapter with plain PEFT."""
    config = peft.LoraConfig(r=2, task_type="CAUSAL_LM", **kind)
    around = quietly(lambda: peft.get_peft_model(plain_base(base), config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in around.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    quietly(lambda: around.save_pretrained(adapter))


def plain_adapted(base: Path, adapter: Path) -> Any:
    """The adapted model as plain PEFT loads it."""
    return quietly(lambda: peft.PeftModel.from_pretrained(plain_base(base), adapter).eval())


def settings_of(place: Path, **changes: Any) -> ModelSettings:
    return ModelSettings(name="small", base=str(place), **changes)


def sample_ids() -> Tensor:
    return torch.randint(3, 330, (3, 25), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def logits(model: Any) -> Tensor:
    found: Tensor = model.eval()(input_ids=sample_ids(), use_cache=False).logits
    return found.double()


@torch.no_grad()
def plain_losses(model: Any, tokenizer: Any, questions: tuple[Question, ...]) -> list[float]:
    """Mean cross-entropy of each answer, one row at a time."""
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 120)
    losses: list[float] = []
    for row in map(encoder.row, questions):
        found = model(input_ids=torch.tensor([row.ids])).logits[0].float().log_softmax(-1)
        picked = [float(found[at - 1, row.ids[at]]) for at in range(row.start, len(row.ids))]
        losses.append(-sum(picked) / len(picked))
    return losses


@pytest.mark.parametrize(("kind", "tied"), diagonals_in_make_test(2, KINDS, TIED))
def test_an_evaluation_equals_plain_peft_one_row_at_a_time(
    kind: str, tied: bool, folders: Any, tokenizer: Any
) -> None:
    base, adapter = folders(kind, tied)
    found = evaluate_model(adapter, data=DATA, forget=0.25, profile=PROFILE).sets["forget"]
    rows = load_benchmark(DATA, (0.25,)).splits[0.25].forget[:2]
    expected = plain_losses(plain_adapted(base, adapter), tokenizer, rows)
    assert list(found.answer_loss) == pytest.approx(expected, rel=1e-5)
    unadapted = plain_losses(plain_base(base), tokenizer, rows)
    assert unadapted != pytest.approx(expected, rel=1e-4), "the adapter changes the answers"


@pytest.mark.parametrize(
    "kind", some_in_make_test(("tokens", "layers", "whole-both", "whole-embedding"), 2)
)
def test_relearning_trains_the_weights_that_an_adapter_has_replaced(
    kind: str, folders: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """As it trains the merged model, of which no weight is left out."""
    _, adapter = folders(kind, kind != "layers")
    whole = tmp_path / "whole"
    load_model(Source(str(adapter)), settings_of(adapter)).save_pretrained(whole)
    tokenizer.save_pretrained(whole)
    rules = get_profile("tofu", max_length=100)
    losses: list[list[float]] = []
    for place in (adapter, whole):
        setup = set_up(place, data=DATA, forget=0.5, profile=rules)
        found = dict(setup.evaluations(place, attack_specs({"relearning": {}})))
        losses.append(
            [float(x) for seen in found.values() for x in seen.sets["forget"].answer_loss]
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("tied", TIED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_adapter_computes_what_it_did_also_from_its_files(
    kind: str, tied: bool, folders: Any, tmp_path: Path
) -> None:
    base, adapter = folders(kind, tied)
    expected = logits(plain_adapted(base, adapter))
    model = load_model(Source(str(adapter)), settings_of(adapter))
    torch.testing.assert_close(logits(model), expected, rtol=1e-5, atol=1e-4)
    assert all(parameter.requires_grad for parameter in model.parameters()), "a run trains it"
    assert not any("lora" in name for name, _ in model.named_parameters())
    model.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(
        logits(plain_base(tmp_path / "merged")), expected, rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("tied", TIED)
@pytest.mark.parametrize("targets", [("embed_tokens",), ("q_proj", "embed_tokens"), ("lm_head",)])
def test_training_embeddings_and_export_equal_plain_peft(
    targets: tuple[str, ...], tied: bool, folders: Any, tokenizer: Any, tmp_path: Path,
    questions: tuple[Question, ...],
) -> None:  # fmt: skip
    """Two epochs of AdamW; the plain loop reads one row at a time."""
    base, _ = folders("layers", tied)
    lora = LoRA(rank=2, alpha=4, target_modules=targets)
    torch.manual_seed(7)  # what adapters begin with
    model = load_model(Source(str(base)), settings_of(base, lora=lora), train=True)
    rows = training_rows(tokenizer, questions)
    objective = objective_of("gradient-ascent")
    how = TrainerSettings(
        epochs=2, batch_size=8, learning_rate=1e-3, seed=5, max_grad_norm=1e9, weight_decay=0.0
    )
    references = load_references(
        lambda: model, "weights", rows, objective.needs, seed=5, epochs=2, pad=0, folder=tmp_path
    )
    trainer = Trainer(model, objective, rows, how, 0, references)
    for epoch in (1, 2):
        list(trainer.epoch(epoch))

    torch.manual_seed(7)
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=list(targets), task_type="CAUSAL_LM")
    plain = quietly(lambda: peft.get_peft_model(plain_base(base), config))
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
    for _ in (1, 2):
        losses: list[Tensor] = []
        count = sum(row.scored for row in rows.forget)
        for row in rows.forget:
            found = plain(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1)
            for at in range(row.start, len(row.ids)):
                losses.append(found[at - 1, row.ids[at]] / count)
        torch.stack(losses).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = {n: p for n, p in plain.named_parameters() if p.requires_grad}
    found = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert found.keys() == expected.keys()
    for name, parameter in found.items():
        torch.testing.assert_close(parameter, expected[name], rtol=1e-3, atol=1e-5)
    wanted = logits(plain)
    merged(model).save_pretrained(tmp_path / "exported")
    torch.testing.assert_close(
        logits(plain_base(tmp_path / "exported")), wanted, rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("tied", TIED)
def test_lora_on_top_of_an_adapter_begins_with_the_merged_model(
    tied: bool, folders: Any, tmp_path: Path
) -> None:
    base, adapter = folders("embedding", tied)
    lora = LoRA(rank=2, alpha=4, target_modules=("q_proj",))
    model = load_model(Source(str(adapter)), settings_of(adapter, lora=lora), train=True)
    expected = logits(plain_adapted(base, adapter))
    torch.testing.assert_close(logits(model), expected, rtol=1e-5, atol=1e-4)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 2, "the new adapter alone: two matrices in two layers"
    # A second adapter on the first one is an adapter folder as well.
    save_adapter(merged_folder(adapter, tmp_path), tmp_path / "second", 2, **KINDS["layers"])
    config = json.loads((tmp_path / "second" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(adapter)
    (tmp_path / "second" / "adapter_config.json").write_text(json.dumps(config))
    both = load_model(Source(str(tmp_path / "second")), settings_of(tmp_path / "second"))
    wanted = logits(plain_adapted(tmp_path / "merged", tmp_path / "second"))
    torch.testing.assert_close(logits(both), wanted, rtol=1e-5, atol=1e-4)


def merged_folder(adapter: Path, tmp_path: Path) -> Path:
    """The adapted model as a plain folder, with untied weights."""
    model = load_model(Source(str(adapter)), settings_of(adapter))
    model.save_pretrained(tmp_path / "merged")
    return tmp_path / "merged"


class TestSource:
    """What an adapter's folder says about its base, and the hashes that ids are made from."""

    def test_hashes_cover_adapter_and_base_and_no_path(self, folders: Any, tmp_path: Path) -> None:
        base, adapter = folders("layers", True)
        source = Source(str(adapter))
        first = source.content(), source.weights(), source.identity()
        moved = tmp_path / "elsewhere"
        shutil.copytree(base, moved)
        self.rename(adapter, str(moved))
        assert (source.content(), source.weights(), source.identity()) == first
        other = Source(str(adapter), None, str(moved))
        assert (other.content(), other.weights(), other.identity()) == first
        self.change(adapter, lora_alpha=3)
        assert source.content() != first[0], "alpha changes what the adapter computes"
        assert source.weights() == first[1]
        self.change(adapter, lora_alpha=8)
        assert source.content() == first[0]
        self.spoil(moved / "model.safetensors")
        assert source.content() != first[0]
        assert source.weights() != first[1]
        self.rename(adapter, str(base))
        assert source.content() == first[0]
        self.spoil(adapter / "adapter_model.safetensors")
        assert source.content() != first[0]
        assert source.weights() != first[1]

    def test_of_a_hub_the_id_and_revision_count(self, folders: Any) -> None:
        _, adapter = folders("layers", True)
        hashes = {
            Source(str(adapter), None, base).content() for base in ("a/b", "a/b@1", "a/b@2", "c/d")
        }
        assert len(hashes) == 4
        assert Source(str(adapter), None, "a/b@1").whole.repository.label == "model a/b@1"

    @pytest.mark.parametrize("option", [None, "/gone/too"])
    def test_a_base_that_has_moved_is_named_with_the_file_and_the_fix(
        self, option: str | None, folders: Any
    ) -> None:
        base, adapter = folders("layers", True)
        self.rename(adapter, "/gone/base")
        source = Source(str(adapter), None, option)
        settings = settings_of(adapter, adapter_base=option)
        for use in (
            source.check,
            lambda: source.files(weights=True),
            lambda: load_model(source, settings),
            lambda: load_tokenizer(source, settings),
        ):
            with pytest.raises(ModelError) as caught:
                use()
            text = str(caught.value)
            assert text.startswith(f"{adapter}: an adapter on '{option or '/gone/base'}', as ")
            if option is None:
                assert "as its adapter_config.json says (base_model_name_or_path): no mod" in text
                assert "--adapter-base on the command line, adapter_base in a conf" in text
            else:
                assert "as --adapter-base or the key adapter_base says: no model folder" in text
        found = load_model(source_of(settings_of(adapter, adapter_base=str(base))), settings)
        assert logits(found) is not None

    def test_an_adapter_that_names_itself_has_no_base(self, folders: Any) -> None:
        _, adapter = folders("layers", True)
        self.rename(adapter, str(adapter))
        with pytest.raises(ModelError, match="or one whose base is itself"):
            Source(str(adapter)).check()

    def test_the_tokenizer_is_the_adapters_or_the_bases(self, folders: Any, tokenizer: Any) -> None:
        _, adapter = folders("layers", True)
        source, settings = Source(str(adapter)), settings_of(adapter)
        assert load_tokenizer(source, settings).get_vocab() == tokenizer.get_vocab()
        own = copy.deepcopy(tokenizer)
        own.add_tokens(["<mine>"])
        own.save_pretrained(adapter)
        assert "<mine>" in load_tokenizer(source, settings).get_vocab()

    @staticmethod
    def change(adapter: Path, **values: Any) -> None:
        path = adapter / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    def rename(self, adapter: Path, base: str) -> None:
        self.change(adapter, base_model_name_or_path=base)

    @staticmethod
    def spoil(weights: Path) -> None:
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)


class TestTargets:
    """Layers that `lora` names are looked up before anything is trained or evaluated."""

    def config(self, tmp_path: Path, targets: Any, **changes: Any) -> SweepConfig:
        config = config_of(tmp_path)
        (model,) = config.models
        lora = LoRA(target_modules=targets)
        return config.model_copy(
            update={"models": (model.model_copy(update={"lora": lora, **changes}),)}
        )

    @pytest.mark.parametrize(
        ("targets", "message"),
        [
            (
                ("q_proj", "v_prj"),
                r"models\.tiny\.lora\.target_modules: no layer of LlamaForCausalLM is called "
                r"'v_prj'; did you mean 'v_proj'\? its layers are called down_proj, embed_tokens, ",
            ),
            (("nothing-like-it",), "is called 'nothing-like-it'; its layers are called down_proj"),
            (("layers.7.q_proj",), "no layer of LlamaForCausalLM is called 'layers.7.q_proj'"),
            (("input_layernorm",), r"peft cannot put adapters on \('input_layernorm',\) of Llama"),
            (("self_attn",), r"peft cannot put adapters on \('self_attn',\) of LlamaForCausalLM"),
        ],
    )
    def test_a_plan_names_what_the_model_does_not_have(
        self, targets: Any, message: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ModelError, match=message):
            plan_sweep(self.config(tmp_path, targets))
        assert not (tmp_path / "cache").exists(), "nothing was trained"

    @pytest.mark.parametrize("targets", ["all-linear", ("embed_tokens", "q_proj", "lm_head")])
    def test_what_the_model_has_is_planned(self, targets: Any, tmp_path: Path) -> None:
        plan, _ = plan_sweep(self.config(tmp_path, targets))
        assert plan.runs[0].model.lora == LoRA(target_modules=targets)

    def test_other_names_of_a_folder_and_of_an_adapters_base(
        self, folders: Any, tmp_path: Path
    ) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=400, n_embd=16, n_layer=1, n_head=2))
        gpt2.save_pretrained(tmp_path / "gpt2")
        _, adapter = folders("layers", True)
        for place, error in ((tmp_path / "gpt2", "GPT2LMHeadModel"), (adapter, "")):
            settings = settings_of(place, lora=LoRA(target_modules=("q_proj",)))
            if error:
                with pytest.raises(ModelError, match=f"no layer of {error} is called 'q_proj'"):
                    check_targets(settings)
            else:
                check_targets(settings)

    @pytest.mark.parametrize(
        ("family", "lora", "message"),
        [
            ("qwen3-moe", {"target_modules": ("q_proj", "gate_proj", "up_proj", "down_proj")}, ""),
            ("mixtral", {"target_modules": ("q_proj", "w1", "w2", "w3")}, ""),
            ("mixtral", {"target_modules": ("w1",)}, "without also targeting w3"),
            ("mixtral", {"target_modules": ("q_proj", "w4")}, "no layer of .* is called 'w4'; its"),
            ("gpt-oss", {"target_modules": ("gate_proj",)}, "no layer of .* is called 'gate_proj'"),
            ("gpt-oss", {"target_parameters": ("experts.down_proj",)}, ""),
            (
                "mixtral",
                {"target_parameters": ("mlp.experts.down_proj", "mlp.experts.up_proj")},
                r"models\.small\.lora\.target_parameters: no parameter of MixtralForCausalLM is "
                r"called 'mlp\.experts\.up_proj'; did you mean 'mlp\.experts\.[a-z_]*up_proj'\?$",
            ),
            ("llama", {"target_parameters": ("mlp.experts.down_proj",)}, "no stacked experts, so"),
            (
                "mixtral",
                {"target_parameters": ("?",)},
                "; its experts are called mlp.experts.down_",
            ),
        ],
    )
    def test_names_of_experts_are_those_that_peft_knows(
        self, family: str, lora: Any, message: str, tmp_path: Path
    ) -> None:
        FAMILIES[family].config().save_pretrained(tmp_path)
        settings = settings_of(tmp_path, lora=LoRA(**lora))
        if not message:
            check_targets(settings)
            return
        with pytest.raises(ModelError, match=message):
            check_targets(settings)

    def test_without_a_plan_it_is_found_before_the_start_model_is_evaluated(
        self, tmp_path: Path
    ) -> None:
        config = self.config(tmp_path, ("v_prj",))
        (spec,) = runs_of(config)
        with pytest.raises(ModelError, match="is called 'v_prj'"):
            run_single(spec, config, tmp_path / "runs" / "small", lambda _: None)
        assert not (tmp_path / "runs" / "small" / "records").exists()
