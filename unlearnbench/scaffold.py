"""`unlearnbench methods new`: a package with a method that works, to be changed into another.

The method it holds is complete, in equation, bounds, source and test, and conforms: an author
changes one thing at a time and sees at once what a change breaks.
"""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path
from string import Template

from unlearnbench.errors import PluginError
from unlearnbench.outputs import check_folder

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

_METHOD = Template('''\
"""$title: gradient ascent that ends where a token is unlikely enough."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus
from unlearnbench import LossBatch, Method, Needs


class $cls(Method):
    """$title: own work; replace this line by author, year and paper.

    L = (1/β) · mean_t log(1 + (p_t / ε)^β) = (1/β) · mean_t softplus(β · (log p_t − log ε))

    t      answer token of a forget row, the one that ends it included;  p_t  its probability
    β, ε   `sharpness` and `floor`
    β → ∞  gradient ascent on the tokens that are likelier than ε, and nothing on the others
    """

    needs: ClassVar[Needs] = Needs(parts=frozenset({"forget"}))

    floor: float = Field(default=0.01, gt=0, lt=1, description="probability of a forgotten token")
    sharpness: float = Field(default=1.0, gt=0, description="how sharply the ascent ends, β")

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        above = batch.forget.token_logprob - math.log(self.floor)  # [N]
        return batch.forget.mean_tokens(softplus(self.sharpness * above) / self.sharpness)
''')

_TEST = Template('''\
"""$title conforms, and has the value that its equation has."""

from __future__ import annotations

import math

import pytest
import torch
from $module import $cls
from unlearnbench import LossBatch, Predictions
from unlearnbench.projection import Projection
from unlearnbench.testing import MethodConformance


class Test$cls(MethodConformance):
    """Padding, shift, accumulation, extremes, needs, ...: one test each."""

    method = $cls


def test_a_value_worked_by_hand() -> None:
    # Four equal logits: p = 1/4, twice the floor of 1/8, so that L = log(1 + 2).
    logits, rows = torch.zeros(1, 4, dtype=torch.float64), torch.tensor([0])
    forget = Predictions(logits, Projection(None), torch.tensor([3]), rows, 1, 1, 1)
    loss = $cls(floor=1 / 8).loss(LossBatch({"forget": forget}))
    assert loss.item() == pytest.approx(math.log(3))
''')

_PROJECT = Template("""\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "unlearnbench-$name"
version = "0.1.0"
description = "$title, a method for unlearnbench."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["unlearnbench"]

[project.entry-points."unlearnbench.methods"]
$name = "$module:$cls"

[tool.setuptools]
py-modules = ["$module"]

[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = ["--import-mode=importlib"]
""")

_README = Template("""\
# $title

A method for unlearnbench. Its equation is in `$module.py`.

```sh
pip install -e .                        # from now on it is listed, swept and drawn like any other
pytest                                  # the conformance suite, and a value worked by hand
unlearnbench methods check $name        # the same suite, told in words
unlearnbench methods show $name         # equation, needs, hyper-parameters
unlearnbench methods gradient $name npo --out gradient.html
unlearnbench sweep quickstart --set methods=[$name,npo] --set learning_rates=[5e-5]
```

Without installing it: `unlearnbench methods check --plugin $module.py`; sweeps take `--plugin` too.
""")


def write_package(name: str, folder: Path) -> tuple[Path, ...]:
    """Write the package of the method `name` into `folder`/`name`; returns its files.

    Raises: PluginError where the name is none, or the folder is not empty.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        near = "-".join(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()))
        usable = _NAME.fullmatch(near) and not keyword.iskeyword(near)
        hint = f"; try {near!r}" if usable and near != name else ""
        raise PluginError(
            f"{name!r} is no name for a method: small letters and digits, in words that hyphens "
            f"join, beginning with a letter, and no word of Python{hint}"
        )
    module = name.replace("-", "_")
    if find_spec(module) is not None:
        raise PluginError(
            f"{name!r}: Python here has a module {module} already, which the method's file would "
            "hide or be hidden by; choose another name"
        )
    place = folder / name
    check_folder(place, "the package")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise PluginError(f"{place} is there already; nothing was written. Choose another --out")
    words = name.split("-")
    told = {
        "name": name,
        "module": module,
        "cls": "".join(word.capitalize() for word in words),
        "title": " ".join(words).capitalize(),
    }
    files = {
        "pyproject.toml": _PROJECT,
        "README.md": _README,
        f"{module}.py": _METHOD,
        f"tests/test_{module}.py": _TEST,
    }
    for path, template in files.items():
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(template.substitute(told), encoding="utf-8")
    return tuple(place / path for path in files)
