"""Turn off output of transformers and peft on which a user can do nothing."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from unlearnbench.models.transformers_import import import_transformers

_USELESS_BEGINNINGS = (
    "Found missing adapter keys",  # we raise an error of our own
    "Model (has|with) `tie_word_embeddings=True`",  # `lora.merged` unties the two layers
    "Setting `save_embedding_layers` to `True`",  # an adapter on an embedding needs this setting
    "Input and output embeddings are no longer tied",  # they were not tied in the adapter either
    "Could not find a config file in",  # the base is the folder of another adapter
    "The PEFT config's `base_model_name_or_path` was renamed",  # we renamed it for `adapter_base`
)
"""Beginnings of peft's warnings that are of no use here, as regular expressions."""


def quiet_transformers() -> None:
    """Turn off load reports and progress bars of libraries. Our own warnings are still printed."""
    import_transformers()
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    # If the hub's retries fail, we raise an error of our own that names the missing model.
    for name in ("accelerate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def quiet_peft() -> Generator[None, None, None]:
    """Turn off peft's warnings on which a user can do nothing, as long as the context lasts."""
    with warnings.catch_warnings():
        # peft calls transformers by deprecated names.
        warnings.simplefilter("ignore", FutureWarning)
        for beginning in _USELESS_BEGINNINGS:
            warnings.filterwarnings("ignore", beginning, UserWarning)
        # peft prepares for checkpoints that store experts as layers, even if no expert is adapted.
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys", RuntimeWarning)
        yield
