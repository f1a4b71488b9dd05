"""The start model with what a wrapping method puts in front of it."""

from __future__ import annotations

from unlearnbench.method import Prompts, Wrapper
from unlearnbench.models.loading import check_vocabulary, load_model, pad_id
from unlearnbench.models.shifted import ShiftedModel
from unlearnbench.plan import RunSpec
from unlearnbench.plugin_code import plugin_code
from unlearnbench.workspace import Workspace


def wrapped_model(spec: RunSpec, space: Workspace, method: Wrapper) -> ShiftedModel:
    """Fit `method` on the questions to forget and to retain; an adapter is not trained."""
    # The evaluation's own encoder: prompts are the ones that will be asked.
    encoder = space.evaluator(spec.model.name, spec.forget_fraction).encoder
    split, pad = space.benchmark.splits[spec.forget_fraction], pad_id(encoder.tokenizer)
    models = space.models(spec.model.name)
    models.make_sure("full")
    model = load_model(models.full(), spec.model)
    check_vocabulary(model, encoder.tokenizer)
    forget, retain = (
        [encoder.prompt(question.question) for question in side]
        for side in (split.forget, split.retain)
    )
    prompts = Prompts(forget, retain, pad, spec.seed)
    with plugin_code(f"`fit` of {type(method).__name__}"):
        shift = method.fit(model, prompts)
    return ShiftedModel(model, shift)
