"""A run that trains nothing: the start model with a wrapping method in front of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from unlearnbench.api.inference_method import Prompts, Wrapper
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.models.loading import check_vocabulary, load_model, pad_id
from unlearnbench.models.prompt_shift import ShiftedModel
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.results.records import EpochResult
from unlearnbench.runs.evaluated_run import EvaluatedRun
from unlearnbench.runs.workspace import Workspace


class InferenceRun(EvaluatedRun):
    """A run that is evaluated once."""

    def run(self, method: Wrapper) -> Iterator[EpochResult]:
        """Yield the evaluation, then write the record."""
        begin = time.monotonic()
        (epoch,) = self.spec.evaluate_at
        model = wrapped_model(self.spec, self.space, method)
        result = self._evaluate(model, epoch, time.monotonic() - begin)
        yield result
        collapsed = result.metrics.get(self.space.headline.kept.column) is None
        if not collapsed:
            self._attack(model, epoch, self.spec.attacks)
        status = "collapsed" if collapsed else "finished"
        self._finish(status, self._not_finite(epoch) if collapsed else None)


def wrapped_model(spec: RunSpec, space: Workspace, method: Wrapper) -> ShiftedModel:
    """Fit `method` on the questions to forget and to retain; an adapter is not trained."""
    # The evaluator's encoder makes the prompts that the model will be evaluated on.
    encoder = space.evaluator(spec.model.name, spec.forget_fraction).encoder
    split, pad = space.benchmark.splits[spec.forget_fraction], pad_id(encoder.tokenizer)
    space.preparer(spec.model.name).ensure_prepared("full")
    model = load_model(space.models(spec.model.name).full(), spec.model)
    check_vocabulary(model, encoder.tokenizer)
    forget, retain = (
        [encoder.prompt(question) for question in side] for side in (split.forget, split.retain)
    )
    prompts = Prompts(forget, retain, pad, spec.seed)
    with plugin_code(f"`fit` of {type(method).__name__}"):
        shift = method.fit(model, prompts)
    return ShiftedModel(model, shift)
