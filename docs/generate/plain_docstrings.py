"""An extension of Griffe: docstrings as this project writes them become Markdown."""

from typing import Any

import griffe
from markup import from_docstring


class PlainDocstrings(griffe.Extension):
    """Gives every docstring fences around its formulas and aligned lists."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite the docstring of an object that was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = from_docstring(obj.docstring.value)
