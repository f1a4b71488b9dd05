"""Words by which the site's search finds a page, beside those in its title and text.

The search weighs a word of this list above a word in a title, and a word in a title above one in
the text. The words are what a reader types who does not know ours: "csv", "own loss". A page is
weighed less if its many short titles would hide other pages.

A word of this list brings up the page and folds its sections. If one section has the answer, put
the word into the section's heading instead.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

WORDS: Mapping[str, Sequence[str]] = {
    "start/your-data.md": ("my own data", "csv", "jsonl", "parquet", "hugging face dataset"),
    "start/models.md": ("chat template",),
    "start/choosing-a-method.md": ("which method", "choose a method", "recommended"),
    "start/troubleshooting.md": ("troubleshooting", "faq", "problem", "error"),
    "tutorials/add-a-method.md": ("add a method", "own loss", "custom method"),
    "tutorials/run-on-a-cluster.md": ("cluster", "slurm", "multi-gpu", "kubernetes", "ray"),
    "reference/starting-values.md": ("hyperparameter", "learning rate", "beta", "defaults"),
    "reference/model-families.md": ("llama", "qwen", "gemma", "mistral", "phi", "gpt"),
    "reference/glossary.md": ("glossary", "terms", "definition"),
    "reference/mlflow.md": ("mlflow", "wandb", "tracking"),
    "concepts/speed.md": ("speed", "how long", "seconds", "gpu hours"),
}
"""Search words by path of a page."""
WEIGHTS: Mapping[str, float] = {"reference/python.md": 0.05, "reference/configuration.md": 0.5}
"""Weight in the search by path of a page, for pages that have another one than 1."""


def add(path: str, meta: MutableMapping[str, Any]) -> None:
    """Add words and weight of the page at `path` to its front matter, which the search reads."""
    if words := WORDS.get(path):
        # One tag: the search shows tags next to each other without a blank between them.
        meta["tags"] = [*meta.get("tags", []), " ".join(words)]
    if weight := WEIGHTS.get(path):
        meta["search"] = {"boost": weight, **meta.get("search", {})}
