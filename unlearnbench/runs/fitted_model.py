"""The model of a run whose method trains nothing: the start model behind a fitted shift."""

from functools import partial

from unlearnbench.api.inference_method import Prompts, Wrapper
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.models.limits import check_vocabulary, pad_id
from unlearnbench.models.loading import load_model
from unlearnbench.models.prompt_shift import ShiftedModel, mean_states
from unlearnbench.runs.workspace import Workspace


def fitted_model(spec: RunSpec, space: Workspace, method: Wrapper) -> ShiftedModel:
    """Load the start model, and fit a method on the questions to forget and to retain."""
    name = spec.model.name
    # The evaluator's encoder makes the prompts that the model will be evaluated on.
    encoder = space.evaluator(name, spec.forget_fraction).encoder
    space.preparer(name).ensure_prepared("full")
    model = load_model(space.models(name).full(), spec.model)
    check_vocabulary(model, encoder.tokenizer)

    split = space.benchmark.splits[spec.forget_fraction]
    forget = [encoder.prompt(question) for question in split.forget]
    retain = [encoder.prompt(question) for question in split.retain]
    states = partial(mean_states, model, pad=pad_id(encoder.tokenizer))
    with plugin_code(f"`fit` of {type(method).__name__}"):
        shift = method.fit(model, Prompts(forget, retain, spec.seed, states))
    return ShiftedModel(model, shift)
