"""The tiny base models of a configuration, which can be trained before its sweep is planned.

All other models of such a configuration start from its tiny base. Nothing else can be trained
meanwhile, so a sweep begins with it as soon as the configuration is read.
"""

from collections.abc import Sequence

from unlearnbench.config.schema import SweepConfig
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.runs.model_sources import ModelSources, is_prepared


def missing_bases(config: SweepConfig) -> list[str]:
    """Return the names of the models whose tiny base is not prepared yet.

    Args:
        config: The configuration of a sweep.

    Raises:
        UnlearnbenchError: The rows cannot be loaded.
    """
    tiny = [settings for settings in config.models if settings.base == "tiny"]
    if not tiny:
        return []
    benchmark = load_benchmark(config.data, config.split_keys)
    missing: list[str] = []
    for settings in tiny:
        sources = ModelSources(settings, benchmark, config.cache_folder)
        if not is_prepared(sources.folder("base")):
            missing.append(settings.name)
    return missing


def prepare_bases(config: SweepConfig, names: Sequence[str]) -> None:
    """Train tiny base models one after the other, in this process and on one thread for each core.

    Args:
        config: The configuration of a sweep.
        names: Names of models, as `missing_bases` returns them.
    """
    # A process that only asks which bases are missing does not need to import these.
    import torch

    from unlearnbench.models.device import deterministic, use_device
    from unlearnbench.runs.workspace import workspace

    space = workspace(config, config.folder)
    for name in names:
        resources = config.resources_of(name)
        use_device(resources)
        # The number of threads decides in which order numbers are added up.
        torch.set_num_threads(max(1, int(resources.cpu)))
        with deterministic(config.training.deterministic):
            space.preparer(name).prepare("base")
