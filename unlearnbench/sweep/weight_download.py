"""Weights of the hub, downloaded with a progress bar before a sweep's workers ask for them.

What a worker prints goes nowhere, so a download of many gigabytes would be silent. On a terminal,
the driver therefore downloads the same files first. The workers of this machine find them in the
hub's cache, which they share with the driver.
"""

from collections.abc import Sequence

from unlearnbench.base.console import Console
from unlearnbench.base.errors import ModelError
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.schema import SweepConfig


def download_weights(
    config: SweepConfig, tasks: Sequence[PreparationTask], console: Console
) -> None:
    """Download the weights that tasks and runs read, if there is a terminal to show it on.

    What cannot be downloaded is left to the worker that needs it, whose error names its task.
    """
    if config.ray.address is not None or not console.err.isatty():
        return
    from unlearnbench.models.named_models import hub_sources

    for model in config.models:
        waiting = [task for task in tasks if task.model == model.name and not task.done]
        targets = {task.target for task in waiting}
        is_trained_here = any(task.fraction is None for task in waiting)
        for (key, *split), source in hub_sources(model):
            # Every run begins with the fine-tuned model. Others are read by tasks only, and of a
            # base that nothing is trained from, only the tokenizer is read.
            is_read = {
                "base": is_trained_here,
                "fine_tuned": True,
                "retain": bool(targets.intersection(split)),
            }[key]
            if is_read:
                try:
                    source.files(weights=True)
                except ModelError:
                    return
