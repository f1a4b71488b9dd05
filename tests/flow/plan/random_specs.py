"""Random specs of runs and settings of models as JSON, with values of every field.

They are drawn from the standard library alone, so that any version of the program can read them.
"""

import random
from typing import Any

Spec = dict[str, Any]


def a_spec(seed: int) -> Spec:
    """Return the spec of a run, with about a third of its fields off their defaults."""
    draw = random.Random(f"spec {seed}")
    method = a_method(draw)
    trains = method["name"] not in ("eco", "icul")
    epochs = draw.choice((1, 2, 4, 5))
    spec: Spec = {
        "data": {"source": "synthetic", "authors": draw.choice((10, 20))},
        "data_fingerprint": draw.choice(("rows", "other rows")),
        "model": a_model(draw),
        "forget_fraction": draw.choice((0.1, 0.05, "news", "0.1")),
        "method": method,
        "learning_rate": draw.choice((1e-5, 0.0002, 3.0)) if trains else None,
        "epochs": epochs,
        "evaluate_at": draw.choice(([epochs], [*range(1, epochs + 1)])),
        "seed": draw.choice((0, 1, 7)),
        "training": a_training(draw),
        "evaluation": an_evaluation(draw),
    }
    further: Spec = {
        "content": draw.choice(({}, content_of(spec["model"]))),
        "attacks": draw.sample(ATTACKS, draw.choice((1, 2))),
        "attack_training": {"max_length": 256, "precision": "bf16"},
        "template_digest": draw.choice(("", "0123456789abcdef")),
        "turn_digest": "fedcba9876543210",
        "leaves_out_label": draw.random() < 0.5,
        "takes_roles_apart": draw.random() < 0.5,
        "removes_dropout": draw.random() < 0.5,
        "corrections": draw.choice(([], ["masks of llama4", "quantised experts"])),
        "starts_exactly": draw.random() < 0.5,
        "profile_version": draw.choice((1, 2)),
        "after": draw.choice(("", "0011223344556677")),
    }
    return spec | some_of(draw, further)


def some_of(draw: random.Random, values: Spec, share: float = 0.35) -> Spec:
    """Return some of the values."""
    return {name: value for name, value in values.items() if draw.random() < share}


def a_method(draw: random.Random) -> Spec:
    """Return a method with values of all types, a retain term and modifiers."""
    name = draw.choice(("npo", "dpo", "general-ce-u", "rmu", "eco", "mine"))
    values: Spec = {
        "beta": draw.choice((0.1, 1.0, 1, 1e-7, -0.0)),
        "scaled": draw.random() < 0.5,
        "layer": draw.choice((7, "7", 7.0)),
        "text": draw.choice(("", 'ünïcode " \\', "default", "https://user:secret@h.org/x")),
        "sam.rho": 0.05,
    }
    method: Spec = {"name": name, "hyperparameters": some_of(draw, values, 0.6)}
    method["retain"] = draw.choice((None, {"term": "kl"}, {"term": "nll", "weight": 2.5}))
    method["source"] = draw.choice((None, "aa55"))
    if draw.random() < 0.4:
        method["modifiers"] = draw.choice(({"sam": None}, {"sam": "bb66", "spectral": None}, {}))
    return method


def a_model(draw: random.Random) -> Spec:
    """Return the settings of a model, tiny or published."""
    base = draw.choice(("tiny", "tiny", "org/model", "models/of mine"))
    model: Spec = {"name": draw.choice(("a", "b")), "base": base}
    further: Spec = {
        "architecture": some_of(
            draw,
            {
                "vocabulary": 1024,
                "hidden_size": 64,
                "layers": 2,
                "heads": 2,
                "intermediate_size": 96,
                "context": 128,
            },
        ),
        "preparation": a_preparation(draw),
        "template": draw.choice(("plain", "llama-2", "phi", "chat")),
        "template_args": {"date_string": "1 Jan 2026", "depth": 2, "on": True},
        "eos_as_padding": draw.random() < 0.7,
        "dtype": "bfloat16",
        "attention": "eager",
        "trust_remote_code": True,
        "gradient_checkpointing": True,
        "lora": some_of(
            draw,
            {
                "rank": 4,
                "alpha": 32,
                "dropout": 0.1,
                "target_modules": ["q_proj", "v_proj"],
                "target_parameters": ["mlp.experts.down_proj"],
            },
            0.5,
        ),
        "resources": {"gpu": 0.5, "cpu": 2.0},
    }
    if base != "tiny":
        further |= {
            "fine_tuned": draw.choice(("org/tuned@v1", "models/tuned")),
            "retain": {"retain90": "org/retain90", "retain95": "logs/retain95.json"},
            "revision": "0f0f",
            "adapter_base": "org/base",
        }
    return model | some_of(draw, further)


def a_preparation(draw: random.Random) -> Spec:
    """Return settings of the training of start and retain models."""
    return some_of(
        draw,
        {
            "epochs": 7,
            "base_epochs": 3,
            "optimizer": draw.choice(("adamw", "muon")),
            "learning_rate": 2e-5,
            "embedding_learning_rate": 1e-3,
            "schedule": draw.choice(("constant", "cosine", "tofu")),
            "warmup": 0.1,
            "batch_size": 16,
            "micro_batch_size": 4,
            "weight_decay": draw.choice((0.0, 0.1)),
            "decay_norms_and_biases": draw.random() < 0.5,
            "max_grad_norm": 0.5,
            "max_length": draw.choice((256, 500)),
            "precision": draw.choice(("fp32", "bf16")),
            "rehearse_facts": draw.random() < 0.5,
            "seed": 3,
        },
    )


def a_training(draw: random.Random) -> Spec:
    """Return settings of the training of runs."""
    return some_of(
        draw,
        {
            "batch_size": 8,
            "micro_batch_size": 2,
            "optimizer": draw.choice(("adamw", "adamw-8bit", "paged-adamw-8bit")),
            "weight_decay": draw.choice((0.0, 0.01)),
            "decay_norms_and_biases": draw.random() < 0.5,
            "schedule": draw.choice(("linear", "tofu")),
            "warmup_steps": 5,
            "max_grad_norm": 2.0,
            "max_length": 256,
            "precision": draw.choice(("bf16", "bf16", "fp32")),
            "deterministic": draw.random() < 0.7,
            "dropout": draw.choice(("auto", "keep", "remove")),
            "ignore_label": draw.random() < 0.5,
        },
        0.4,
    )


def an_evaluation(draw: random.Random) -> Spec:
    """Return rules of evaluations."""
    return some_of(
        draw,
        {
            "profile": draw.choice(("open-unlearning", "tofu-paper", "unlearnbench")),
            "max_length": 64,
            "rows": 50,
            "question_key": draw.choice(("question", "paraphrased_question")),
            "batch_tokens": 4096,
            "precision": draw.choice(("fp32", "bf16")),
            "every": 2,
            "stop_below": 0.5,
            "patience": {"metric": "forget_quality", "epochs": 2}
            | some_of(draw, {"min_delta": 0.01, "mode": "max"}),
            "metrics": draw.choice(({"fluency": {}}, {"mia-min-k": {"share": 0.2}}, {})),
        },
    )


def content_of(model: Spec) -> dict[str, str]:
    """Return hashes of the places that a model names, as if they were folders of this machine."""
    contents = {"base": "c0", "fine_tuned": "c1"}
    hashes = {key: digest for key, digest in contents.items() if model.get(key)}
    return hashes | {f"retain.{name}": f"c-{name}" for name in model.get("retain", {})}


ATTACKS: list[Spec] = [
    {"name": "relearning", "settings": {"steps": [1, 3], "at": "last", "rate": 1e-5}},
    {
        "name": "mine",
        "settings": {"at": "every", "share": 0.5, "names": ["a"], "none": None},
        "version": 2,
        "source": "dd88",
        "content": "ee99",
    },
]


def a_prepared_model(seed: int) -> tuple[Spec, Spec, Spec]:
    """Return settings of a tiny model, of evaluations and of training."""
    draw = random.Random(f"model {seed}")
    model = a_model(draw)
    while model["base"] != "tiny" or "template_args" in model or model.get("template") == "chat":
        model = a_model(draw)
    return model, an_evaluation(draw), a_training(draw)
