"""Profile ten decoding steps of an evaluation: python -m benchmarks.decoding MODEL --data FOLDER

The share of a step in which the GPU computes: the time of its kernels, by torch.profiler, of the
median of as many steps just before without it. On a CPU operators take the kernels' place.
"""

import sys
from typing import Any

import numpy as np
import torch

from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation.decoding import Decoding
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.loading import load_model
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.source import Source
from unlearnbench.models.whole_model import load_tokenizer
from unlearnbench.runs.evaluate_model import data_settings, model_settings

from .evaluation import evaluators
from .timer import DEVICE, begin, end, now, options_of

STEPS = 10
"""Steps that are timed, and as many that are profiled."""


class _EnoughError(Exception):
    """What was asked for is measured."""


def main(words: list[str] | None = None) -> int:
    """Evaluate until the steps are measured."""
    parser = options_of(__doc__)
    parser.add_argument("model", help="a folder")
    parser.add_argument("--data", default="synthetic", help="a benchmark, or a folder of files")
    parser.add_argument("--forget", type=float, default=0.1)
    parser.add_argument("--rows", type=int, help="the most of a set")
    parser.add_argument("--after", type=int, default=20, help="steps before them")
    options = begin(parser, words)
    dtype = "bfloat16" if DEVICE.type == "cuda" else "float32"
    source, settings = Source(options.model), model_settings(options.model, "plain", dtype)
    profile = get_profile("tofu", rows=options.rows)
    benchmark = load_benchmark(data_settings(options.data), (options.forget,))
    sets = evaluation_sets(benchmark, options.forget, profile)
    evaluator = evaluators(sets, load_tokenizer(source, settings), profile, dtype)[1]
    profiler = torch.profiler.profile()
    step: Any = Decoding._step  # pyright: ignore[reportPrivateUsage]
    times: list[float] = []
    answers: list[int] = []
    recorded: list[int] = []

    def watched(self: Any, slots: list[int], **how: Any) -> None:
        times.append(now())
        answers.append(len(slots))
        recorded.append(len(self.replays.recorded))
        if len(times) == options.after + STEPS:
            profiler.start()
        if len(times) == options.after + 2 * STEPS:
            profiler.stop()
            raise _EnoughError
        step(self, slots, **how)

    Decoding._step = watched  # type: ignore[method-assign]
    try:
        evaluator(load_model(source, settings).to(DEVICE).eval())
        sys.exit("the evaluation was over too soon: give it more questions, or a lower --after")
    except _EnoughError:
        pass
    finally:
        Decoding._step = step  # type: ignore[method-assign]
    # Not the mean: a step may record a graph.
    seconds = float(np.median(np.diff(times[options.after - 1 : options.after + STEPS])))
    name = "self_device_time_total" if DEVICE.type == "cuda" else "self_cpu_time_total"
    # On a GPU an operator has its kernels' time, too, which would count twice.
    kernels = [e for e in profiler.key_averages() if e.device_type.name == DEVICE.type.upper()]
    spent: dict[str, float] = {
        e.key: getattr(e, name) / 1e6 for e in kernels if getattr(e, name)
    }  # in seconds
    most = sorted(spent.items(), key=lambda item: -item[1])[:25]
    return end(
        options,
        True,
        seconds_a_step=seconds,
        answers=answers[options.after],
        recorded=recorded[options.after],
        share=sum(spent.values()) / STEPS / seconds,
        attention=sorted(n for n in spent if "attention" in n or "flash" in n or "cudnn" in n),
        seconds={name: round(value / STEPS, 6) for name, value in most},
    )


if __name__ == "__main__":
    sys.exit(main())
