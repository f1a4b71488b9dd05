"""Forget news or novels, word for word and as knowledge.

Its rows are those of the hub's data sets muse-bench/MUSE-News and MUSE-Books. The models are
published ones, `muse-bench/MUSE-News_target` and `_retrain`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from unlearnbench.api.benchmark import (
    Dataset,
    Headline,
    HeadlineMetric,
    MetricUse,
    Question,
    Reference,
    Split,
    SplitKey,
)
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.base import hub
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.published_tables import (
    Columns,
    PublishedBenchmark,
    Table,
    Tables,
)

CONTEXT = 4096
"""Most tokens of an evaluated row: Llama-2's context."""
STOPS = ("\n\n", "\nQuestion", "Question:")
VERBATIM, ANSWER = 128, 32
"""Tokens that are generated. Of the reference of the former, 128 are kept with BOS."""
_JOINT = 60
"""Characters on both sides of a place by which it is found in the texts."""
_ANSWERED = ("knowmem_retain", "knowmem", "verbmem")


class MUSE(PublishedBenchmark):
    """Shi et al. 2024, arXiv:2407.06460; prompts and rules of swj0419/muse_bench@fcd6651."""

    roles: ClassVar[Mapping[str, Role]] = {
        "knowmem_retain": "retain",
        "knowmem": "forget",
        "verbmem": "forget",
        "privleak_retain": "retain",
        "privleak": "forget",
        "holdout": "holdout",
    }
    splits: ClassVar[tuple[str, ...]] = ("all",)
    forgotten: ClassVar[tuple[tuple[str, str], ...]] = (("forget", "raw"),)
    """Split and configuration, on the hub, of the texts to forget of each split."""
    headline: ClassVar[Headline] = Headline(
        kept=HeadlineMetric("rouge_f1_knowmem_retain", "Knowledge kept", "knowledge"),
        forgotten=HeadlineMetric("rouge_f1_verbmem", "Verbatim memory", "verbatim", better="lower"),
    )

    source: str = "muse"
    hub_id: str = Field(
        default="muse-bench/MUSE-News",
        description="data set on the hub: the default, or muse-bench/MUSE-Books",
    )
    tokenizer: str | None = Field(
        default=None,
        description="folder or hub id (`@` with a revision may follow) of a tokenizer; training "
        "texts are joined and cut into pieces of `piece` of its tokens; default: "
        "each text is a row, which is cut at its end",
    )
    piece: int = Field(default=2047, ge=8, description="number of tokens of a piece, without BOS")

    @property
    def repositories(self) -> Mapping[str, hub.Repository]:
        """The data set, and the tokenizer's model."""
        tokenizer = self._tokenizer_repository
        further = {} if tokenizer is None else {"tokenizer": tokenizer}
        return {**super().repositories, **further}

    @property
    def _tokenizer_repository(self) -> hub.Repository | None:
        if self.tokenizer is None or Path(self.tokenizer).expanduser().exists():
            return None
        name, _, revision = self.tokenizer.partition("@")
        return hub.Repository("model", name, revision or None)

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """KnowMem, VerbMem, utility and PrivLeak.

        ROUGE has a stemmer as in open-unlearning, and as everywhere under our own rules.
        """
        stemmer = {"stemmer": profile.name.startswith(("open-unlearning", "unlearnbench"))}
        attacked = {"members": "privleak", "control": "privleak_retain", "share": 0.4}
        return (
            MetricUse("rouge-f1", _ANSWERED, stemmer),
            MetricUse("mia-min-k", settings=attacked),
            MetricUse("privleak"),
        )

    def load(self, splits: Sequence[str]) -> Dataset:
        """Read texts and questions; the texts to retain are `retain1`, as in its baselines."""
        requests = {key: Table(*self.forgotten[self.splits.index(key)]) for key in splits}
        tables = self.open_tables((*_TABLES, *requests.values()))
        retain = self._trained(tables, _RETAINED)
        sets = {
            "knowmem_retain": _known(tables, "retain_qa"),
            "knowmem": _known(tables, "forget_qa"),
            "verbmem": _verbatim(tables),
            "privleak_retain": _texts(tables, Table("retain", "privleak"), max_length=CONTEXT),
            "privleak": _texts(tables, Table("forget", "privleak"), max_length=CONTEXT),
            "holdout": _texts(tables, Table("holdout", "privleak"), max_length=CONTEXT),
        }
        parts: dict[SplitKey, Split] = {}
        for key, request in requests.items():
            parts[key] = Split(key, self._trained(tables, request), retain, sets)
        # Requests share texts: a few of News, all where they grow.
        full = dict.fromkeys((*retain, *(row for split in parts.values() for row in split.forget)))
        return Dataset(self.source, tuple(full), parts)

    def _trained(self, tables: Tables, table: Table) -> tuple[Question, ...]:
        if self.tokenizer is None:
            return _texts(tables, table)
        tokenizer = self._loaded_tokenizer()
        # With the texts that are empty, as load_data.py joins them.
        whole = "\n\n".join(row.text for _, row in tables.rows(table, _Text))
        pieces = _pieces(tokenizer(whole, add_special_tokens=False)["input_ids"], self.piece)
        return tuple(Question("", tokenizer.decode(ids), format="text") for ids in pieces)

    def _loaded_tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        repository = self._tokenizer_repository
        try:
            if repository is None:
                folder = Path(str(self.tokenizer)).expanduser()
            else:
                folder = hub.snapshot(repository, hub.SMALL)
            return AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError, hub.HubError) as error:  # gated, not reached, or none
            reason = f" ({error})" if isinstance(error, hub.HubError) else ""
            fix = "name a folder that has one, or log in to the hub (`hf auth login`)"
            text = f"data.tokenizer: no tokenizer {self.tokenizer}{reason}; {fix}"
            raise DataError(text) from error


_RETAINED = Table("retain1", "raw")
_TABLES = (
    _RETAINED,
    Table("forget", "raw"),
    Table("forget", "verbmem"),
    *(
        Table(f"{part}_qa{shown}", "knowmem")
        for part in ("forget", "retain")
        for shown in ("", "_icl")
    ),
    *(Table(part, "privleak") for part in ("forget", "retain", "holdout")),
)
"""Tables that each split reads."""


def _requests(table: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"forget_{i}", table) for i in range(1, 5))


class _Requests(MUSE):
    """Requests of the hub's tables, of News alone, whose retrained models are not published."""

    references: ClassVar[frozenset[Reference]] = frozenset({"start"})
    splits: ClassVar[tuple[str, ...]] = tuple(f"forget{i}" for i in range(1, 5))

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Those of MUSE but PrivLeak, which is relative to a retrained model."""
        return tuple(use for use in super().metrics(profile) if use.metric != "privleak")


class MUSEScalability(_Requests):
    """MUSE with forget sets of one to four times the size.

    Shi et al. 2024, section 5.3.
    """

    forgotten: ClassVar[tuple[tuple[str, str], ...]] = _requests("scal")
    source: str = "muse-scalability"


class MUSESustainability(_Requests):
    """MUSE with four requests, one after the other.

    Shi et al. 2024, section 5.3, for a sweep with `requests: in-sequence`.
    """

    forgotten: ClassVar[tuple[tuple[str, str], ...]] = _requests("sust")
    source: str = "muse-sustainability"


def _pieces(ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Pieces of `size`; the last one goes on with the first, as in baselines/dataset.py."""
    for begin in range(0, len(ids), size):
        piece = ids[begin : begin + size]
        yield [*piece, *ids[: size - len(piece)]]


class _Text(Columns):
    text: str


class _Answered(Columns):
    question: str
    answer: str


class _Continued(Columns):
    prompt: str
    gt: str


def _texts(tables: Tables, table: Table, **settings: Any) -> tuple[Question, ...]:
    """The texts that are not empty, as one of News is."""
    return tuple(
        Question("", row.text, format="text", place=location, **settings)
        for location, row in tables.rows(table, _Text)
        if row.text.strip()
    )


def _known(tables: Tables, part: str) -> tuple[Question, ...]:
    """Questions behind ten answered ones; the blank at the end is the source's."""
    shown = tables.rows(Table(f"{part}_icl", "knowmem"), _Answered)
    opening = "".join(f"Question: {row.question}\nAnswer: {row.answer}\n\n" for _, row in shown)
    return tuple(
        Question(
            f"{opening}Question: {row.question}\nAnswer: ",
            row.answer,
            format="text",
            max_new_tokens=ANSWER,
            max_length=CONTEXT,
            stops=STOPS,
            place=location,
        )
        for location, row in tables.rows(Table(part, "knowmem"), _Answered)
    )


def _verbatim(tables: Tables) -> tuple[Question, ...]:
    """Passages, each with the space that its own text has between prompt and continuation.

    Both were decoded from tokens, which lost it. The source generates from the prompt alone, and
    does not score the continuation.
    """
    texts = "\n\n".join(row.text for _, row in tables.rows(Table("forget", "raw"), _Text))
    return tuple(
        Question(
            row.prompt,
            row.gt,
            format="text",
            tag=" " if f"{row.prompt[-_JOINT:]} {row.gt[:_JOINT]}" in texts else "",
            max_new_tokens=VERBATIM,
            max_answer_tokens=VERBATIM - 1,
            max_length=CONTEXT,
            place=location,
        )
        for location, row in tables.rows(Table("forget", "verbmem"), _Continued)
    )
