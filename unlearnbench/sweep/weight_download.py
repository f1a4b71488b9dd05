"""Download the weights of a hub, with a progress bar, before a sweep's workers ask for them.

What a worker prints is not shown, so a download of many gigabytes would be silent. On a terminal,
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

    If a download fails, the worker that needs the weights reports the error with its task.
    """
    if config.ray.address is not None or not console.err.isatty():
        return
    from unlearnbench.models.named_models import hub_sources

    for model in config.models:
        waiting = [task for task in tasks if task.model == model.name and not task.done]
        for key, source in hub_sources(model):
            if not _is_read(key, waiting):
                continue
            try:
                source.files(weights=True)
            except ModelError:
                return


def _is_read(key: tuple[str, ...], tasks: Sequence[PreparationTask]) -> bool:
    """Whether workers read the weights of a model.

    Args:
        key: The key that names the model: `("base",)`, `("fine_tuned",)` or
            `("retain", "retain90")`.
        tasks: The tasks that are left for this model.
    """
    kind, *retain_name = key
    if kind == "base":
        # If nothing is trained from the base, only its tokenizer is read.
        return any(task.fraction is None for task in tasks)
    if kind == "retain":
        return any(task.target in retain_name for task in tasks)
    # Every run begins with the start model.
    return True
