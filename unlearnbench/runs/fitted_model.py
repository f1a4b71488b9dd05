"""The model of a run whose method trains nothing: the start model behind a fitted wrapper."""

from collections.abc import Callable
from functools import partial
from typing import Any

from unlearnbench.api.benchmark import Question
from unlearnbench.api.defender_rows import DefenderRows
from unlearnbench.api.inference_method import Prompts, PromptWrapper, Shift, Wrapper
from unlearnbench.api.plugin_code import plugin_code, source_file
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import check_vocabulary, pad_id
from unlearnbench.models.loading import load_model
from unlearnbench.models.prompt_shift import ShiftedModel, mean_states
from unlearnbench.models.prompted_model import PromptedModel
from unlearnbench.runs.workspace import Workspace


def fitted_model(spec: RunSpec, space: Workspace, method: Wrapper) -> ShiftedModel | PromptedModel:
    """Load the start model, and put a method around it that is fitted to the training rows."""
    name = spec.model.name
    # The evaluator's encoder makes the prompts that the model will be evaluated on.
    encoder = space.evaluator(name, spec.forget_fraction).encoder
    space.preparer(name).ensure_prepared("full")
    model = load_model(space.models(name).full(), spec.model)
    check_vocabulary(model, encoder.tokenizer)

    if not isinstance(method, PromptWrapper):
        return ShiftedModel(model, _fitted_shift(method, model, encoder, spec, space))
    rows = DefenderRows.of(
        space.benchmark,
        spec.forget_fraction,
        spec.seed,
        has_system_message=encoder.template.system is not None,
    )

    def ask(question: Question) -> Question:
        with plugin_code(f"`asked` of {type(method).__name__}", source_file(type(method))):
            return method.asked(question, rows)

    if type(method).fit is PromptWrapper.fit:
        return PromptedModel(model, ask)
    shift = _fitted_shift(method, model, encoder, spec, space, ask)
    return PromptedModel(ShiftedModel(model, shift), ask)


def _fitted_shift(
    method: Wrapper,
    model: Any,
    encoder: Encoder,
    spec: RunSpec,
    space: Workspace,
    ask: Callable[[Question], Question] = lambda question: question,
) -> Shift:
    """Fit the shift of a method to the prompts that the model will read.

    Args:
        method: The method.
        model: The start model.
        encoder: Makes prompts from questions.
        spec: The run.
        space: The workspace of the sweep.
        ask: What the method makes of a question first. Defaults to the question itself.
    """
    split = space.benchmark.splits[spec.forget_fraction]
    forget = [encoder.prompt(ask(question)) for question in split.forget]
    retain = [encoder.prompt(ask(question)) for question in split.retain]
    states = partial(mean_states, model, pad=pad_id(encoder.tokenizer))
    with plugin_code(f"`fit` of {type(method).__name__}"):
        return method.fit(model, Prompts(forget, retain, spec.seed, states))
