"""Forget news or novels, word for word and as knowledge.

The rows come from the hub's data sets muse-bench/MUSE-News and MUSE-Books. The models are published
as well: `muse-bench/MUSE-News_target` and `muse-bench/MUSE-News_retrain`.
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
"""Largest number of tokens of an evaluated row: Llama-2's context."""
STOPS = ("\n\n", "\nQuestion", "Question:")
VERBATIM = 128
"""Number of tokens of a continued text. Its reference has as many tokens, BOS included."""
ANSWER = 32
"""Number of tokens of an answer to a question."""
_JOINT = 60
"""Number of characters before and after a joint of two texts, by which the joint is found."""
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
    """Table of the texts to forget, for each split: its split and configuration on the hub."""
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
        if tokenizer is None:
            return super().repositories
        return {**super().repositories, "tokenizer": tokenizer}

    @property
    def _tokenizer_repository(self) -> hub.Repository | None:
        if self.tokenizer is None or Path(self.tokenizer).expanduser().exists():
            return None
        name, _, revision = self.tokenizer.partition("@")
        return hub.Repository("model", name, revision or None)

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return KnowMem, VerbMem, utility and PrivLeak.

        The profiles of open-unlearning and of this project stem words for ROUGE.
        """
        stemmer = {"stemmer": profile.name.startswith(("open-unlearning", "unlearnbench"))}
        attacked = {"members": "privleak", "control": "privleak_retain", "share": 0.4}
        return (
            MetricUse("rouge-f1", _ANSWERED, stemmer),
            MetricUse("mia-min-k", settings=attacked),
            MetricUse("privleak"),
        )

    def load(self, splits: Sequence[str]) -> Dataset:
        """Read texts and questions. The texts to retain are `retain1`, as in MUSE's baselines."""
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
        loaded: dict[SplitKey, Split] = {}
        # Requests share texts: a few in News, and all texts if requests grow. Each counts once.
        full = dict.fromkeys(retain)
        for key, request in requests.items():
            forget = self._trained(tables, request)
            full |= dict.fromkeys(forget)
            loaded[key] = Split(key, forget, retain, sets)
        return Dataset(self.source, tuple(full), loaded)

    def _trained(self, tables: Tables, table: Table) -> tuple[Question, ...]:
        """Return the training rows of a table: its texts, or pieces of its joined texts."""
        if self.tokenizer is None:
            return _texts(tables, table)
        tokenizer = self._loaded_tokenizer()
        # Empty texts are joined as well, as in load_data.py.
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
        except (OSError, ValueError, hub.HubError) as error:
            # The repository may be gated or out of reach, or have no tokenizer.
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
    """Return the tables of four requests, see `MUSE.forgotten`."""
    return tuple((f"forget_{i}", table) for i in range(1, 5))


class _Requests(MUSE):
    """Four requests, each with a table of its own on the hub.

    They exist only for News, and their retrained models are not published.
    """

    references: ClassVar[frozenset[Reference]] = frozenset({"start"})
    splits: ClassVar[tuple[str, ...]] = tuple(f"forget{i}" for i in range(1, 5))

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return the metrics of MUSE without PrivLeak, which is relative to a retrained model."""
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
    """Yield pieces of `size` tokens. The last piece is filled up with the first tokens.

    Source: baselines/dataset.py.
    """
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
    """Return the texts of a table that are not empty. News has an empty one."""
    return tuple(
        Question("", row.text, format="text", place=location, **settings)
        for location, row in tables.rows(table, _Text)
        if row.text.strip()
    )


def _known(tables: Tables, part: str) -> tuple[Question, ...]:
    """Return questions, each after ten questions with their answers.

    Args:
        tables: The tables.
        part: Table of the questions: `retain_qa` or `forget_qa`. Examples are in another table.
    """
    opening = ""
    for _, example in tables.rows(Table(f"{part}_icl", "knowmem"), _Answered):
        opening += f"Question: {example.question}\nAnswer: {example.answer}\n\n"
    questions: list[Question] = []
    for place, row in tables.rows(Table(part, "knowmem"), _Answered):
        question = Question(
            # The source has a blank at the end, too.
            f"{opening}Question: {row.question}\nAnswer: ",
            row.answer,
            format="text",
            max_new_tokens=ANSWER,
            max_length=CONTEXT,
            stops=STOPS,
            place=place,
        )
        questions.append(question)
    return tuple(questions)


def _verbatim(tables: Tables) -> tuple[Question, ...]:
    """Return the passages to continue.

    Prompt and continuation were decoded from tokens, which lost the space between them. It is put
    back if the text has one at this place. The source does not need it, because it generates from
    the prompt alone and does not score the continuation.
    """
    texts = "\n\n".join(row.text for _, row in tables.rows(Table("forget", "raw"), _Text))
    passages: list[Question] = []
    for place, row in tables.rows(Table("forget", "verbmem"), _Continued):
        has_space = f"{row.prompt[-_JOINT:]} {row.gt[:_JOINT]}" in texts
        passage = Question(
            row.prompt,
            row.gt,
            format="text",
            tag=" " if has_space else "",
            max_new_tokens=VERBATIM,
            max_answer_tokens=VERBATIM - 1,
            max_length=CONTEXT,
            place=place,
        )
        passages.append(passage)
    return tuple(passages)
