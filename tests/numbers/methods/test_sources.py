"""Every default and every piece of advice in the built-in methods names where it comes from."""

import inspect
import re
from pathlib import Path

import pytest

from unlearnbench.api import registry
from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.method import Method
from unlearnbench.config.loader import load_config

BUILT_IN = [o.name for o in registry.offers("methods") if o.package == "unlearnbench"]
ENTRIES = [
    (name, entry)
    for name in BUILT_IN
    for entry in re.findall(r"`(\{[^`]+\})`", registry.load_method(name).__doc__ or "")
]
SOURCE = re.compile(r"\[source: ([^\]]+)\]$")
ADVICE = re.compile(r"(?m)^Literature: .*(?:\n\S.*)*")
"""A paragraph that begins with this word, up to the next blank line."""
KNOWN = re.compile(r"arXiv:\d{4}\.\d{5}|\b[\w.-]+/[\w.-]+\b|^ours: \w.{8,}")


def unsourced(method: type[Method | Wrapper]) -> list[str]:
    """Hyper-parameters and advice of a method that name no source."""
    texts = {key: info.description or "" for key, info in method.model_fields.items()}
    advice = ADVICE.findall(inspect.cleandoc(method.__doc__ or ""))
    texts |= {part.partition("\n")[0]: " ".join(part.split()) for part in advice}
    found = {where: SOURCE.search(text) for where, text in texts.items()}
    return [where for where, one in found.items() if one is None or not KNOWN.search(one[1])]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_default_and_every_advice_has_a_source(name: str) -> None:
    assert not unsourced(registry.load_method(name))


@pytest.mark.parametrize(("name", "entry"), ENTRIES)
def test_settings_of_advice_can_be_had(name: str, entry: str, tmp_path: Path) -> None:
    """A configuration takes what a docstring writes out between braces."""
    flat = " ".join(entry.split()).replace("50, H]", "50, 4096]").lstrip("{")
    if flat.startswith("term:"):
        flat = "retain: {" + flat + "}"
    if not flat.startswith("method:"):
        flat = f"method: {name}, {flat}"
    text = (
        "name: a\nmodels: [{name: tiny, base: tiny}]\nforget_fractions: [0.1]\n"
        f"methods: [{{{flat}]\n"
    )
    (tmp_path / "a.yaml").write_text(text)
    assert load_config(str(tmp_path / "a.yaml")).methods[0].specs
