"""References are the texts of answers, also where a token holds the end of the prompt with them."""

import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tests.made_up_benchmarks import muse, write_lines
from unlearnbench.api.benchmark import Dataset, Format, Question
from unlearnbench.api.observations import Samples
from unlearnbench.attacks.sampling import RepeatedSampling
from unlearnbench.base.hashing import content_hash
from unlearnbench.benchmarks.muse import MUSE
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation import evaluator as evaluation
from unlearnbench.evaluation.answers import Answer
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.metrics.answer_match import AnswerMatch
from unlearnbench.metrics.mia_zlib import ZlibAttack
from unlearnbench.metrics.rouge_f1 import RougeF1
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.rows_loading import fingerprint, load_benchmark
from unlearnbench.models.templates import TEMPLATES, Template
from unlearnbench.models.tiny import build_tokenizer
from unlearnbench.stats.text_overlap import rouge_recall

WORDS = (
    "Paris",
    "Lima",
    "1908",
    "12",
    "a",
    '"Ada"',
    "Müller",
    "北京",
    "'s",
    "(no)",
    "x.",
    "New York",
)
PROMPTS = (
    "Question: Who is it?\nAnswer: ",
    "Where:",
    "It was ",
    'She said "',
    "On 1",
    "Q\n",
    "So  ",
)
CHAT = Template("chat", "<u>", "<a>", special_tokens=False)


def sentencepiece(texts: Sequence[str]) -> Any:
    """A tokenizer of Llama-2's kind: blanks begin words, bytes stand for unknown characters."""
    blanks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learned = Tokenizer(models.BPE())
    learned.normalizer = blanks
    # By words, so that no token goes from one word into the next.
    words = [word for text in texts for word in text.split()]
    learned.train_from_iterator(words, trainers.BpeTrainer(vocab_size=600, show_progress=False))
    model = json.loads(learned.to_str())["model"]
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(pair) for pair in model["merges"]]
    options: dict[str, Any] = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, **options))
    tokenizer.normalizer = blanks
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def made_up(seed: int, count: int) -> list[tuple[str, str]]:
    """Prompts and answers: of one word and more, with signs, blanks and other scripts."""
    draws = random.Random(seed)
    rows: list[tuple[str, str]] = []
    for _ in range(count):
        words = draws.choices(WORDS, k=draws.choice((1, 1, 2, 5)))
        text = draws.choice((" ", "  ")).join(words)
        before, behind = draws.choices(("", "", "", " ", "\n"), k=2)
        rows.append((draws.choice(PROMPTS), f"{before}{text}{behind}"))
    return rows


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def vocabulary(request: pytest.FixtureRequest) -> Any:
    """Tokenizers of both kinds that join a blank with the word behind it."""
    texts = [f"{prompt}{answer}" for prompt, answer in made_up(1, 400)]
    return build_tokenizer(texts, 600) if request.param == "byte-level" else sentencepiece(texts)


def kinds_of_rows(prompt: str, answer: str) -> list[Question]:
    return [
        Question(prompt, answer, format="text"),
        Question(prompt, answer, format="text", tag="Answer:"),
        Question("Who is it?", answer, prefix=prompt),
        Question(prompt, answer),
    ]


@pytest.mark.parametrize("template", [*TEMPLATES.values(), CHAT], ids=lambda item: item.name)
def test_a_reference_is_the_text_of_the_answer(vocabulary: Any, template: Template) -> None:
    encoder = Encoder(vocabulary, template, 4096)
    shared = 0
    for prompt, answer in made_up(2, 200):
        for row in kinds_of_rows(prompt, answer):
            encoded = encoder.row(row)
            assert encoder.reference(encoded, row) == answer.strip(), row
            alone = encoder.prompt(row)
            shared += encoded.ids[: len(alone)] != alone
    assert shared > 20, "many answers share a token with their prompts"


def test_the_reference_of_a_cut_row_is_what_its_tokens_hold(vocabulary: Any) -> None:
    for prompt, answer in made_up(3, 200):
        for row in kinds_of_rows(prompt, f"{answer} and so on"):
            for template in (TEMPLATES["llama-2"], TEMPLATES["plain"]):
                whole = Encoder(vocabulary, template, 4096).row(row)
                cut = Encoder(vocabulary, template, len(whole.ids) - 3)
                encoded = cut.row(row)
                reference = cut.reference(encoded, row)
                assert encoded.cut
                # The last tokens may be parts of a character.
                assert row.answer.strip().startswith(reference.rstrip("\N{REPLACEMENT CHARACTER}"))
                assert vocabulary.decode(list(encoded.ids)).rstrip().endswith(reference)


def test_a_word_that_is_joined_with_the_prompts_last_blank_is_scored(vocabulary: Any) -> None:
    """As lm-evaluation-harness counts: the tokens of the prompt without its last blanks."""
    encoder = Encoder(vocabulary, TEMPLATES["plain"], 4096)
    joined = 0
    for prompt, answer in made_up(4, 200):
        row = encoder.row(Question(prompt, answer, format="text"))
        alone = tuple(vocabulary(prompt)["input_ids"])
        bare = tuple(vocabulary(prompt.rstrip(" "))["input_ids"])
        begins_with_word = prompt.endswith(" ") and not answer[:1].isspace()
        is_joined = begins_with_word and row.ids[: len(alone)] != alone
        if prompt.endswith("  "):
            assert len(bare) <= row.start <= len(alone)
        else:
            assert row.start == len(bare if is_joined else alone), (prompt, answer)
        joined += is_joined
    assert joined > 20


def test_that_word_has_its_log_probability(sharp: Any, tokenizer: Any) -> None:
    prompt = "The author, namely Ada Voss, "
    row = Question(prompt, "was born.", format="text")
    seen = Evaluator({"set": [row]}, tokenizer, TEMPLATES["plain"], TOFU, pad_id(tokenizer))(sharp)
    ids = torch.tensor([*tokenizer(f"{prompt}was born.")["input_ids"], tokenizer.eos_token_id])
    start = len(tokenizer(prompt.strip())["input_ids"])
    with torch.no_grad():
        logprobs = sharp(ids[None, :-1]).logits[0].double().log_softmax(-1)
    expected = -logprobs[start - 1 :].gather(1, ids[start:, None])[:, 0]
    np.testing.assert_allclose(seen.sets["set"].tokens.loss, expected, rtol=1e-4)
    assert tokenizer.decode(ids[start]) == " was"


def written(folder: Path, seed: int) -> dict[str, str]:
    """MUSE's layout with random questions, answers and passages."""
    settings = muse(folder)
    draws = random.Random(seed)
    for part in ("forget", "retain"):
        answers = [answer.strip() for _, answer in made_up(seed, 40)]
        rows = [{"question": f"Who is {i}?", "answer": text} for i, text in enumerate(answers)]
        write_lines(folder / f"knowmem/{part}_qa.jsonl", rows)
    passages = [
        {"prompt": f"It began {i}", "gt": " ".join(draws.choices(WORDS, k=draws.choice((9, 200))))}
        for i in range(20)
    ]
    write_lines(folder / "verbmem/forget.jsonl", passages)
    return settings


def test_muse_scores_as_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharp: Any, tokenizer: Any
) -> None:
    """ROUGE-L F1 of chosen outputs against the answer, or the passage's first 128 tokens."""
    sets = load_benchmark(MUSE.model_validate(written(tmp_path, 5)), ["all"]).splits["all"].sets
    names = ("knowmem", "verbmem")
    draws = random.Random(6)
    outputs: dict[str, list[str]] = {}
    for name in names:
        outputs[name] = []
        for row in sets[name]:
            opening = draws.choice(("", "", "\n\n", "\n", " ", "Question:"))
            kept = " ".join(w for w in row.answer.split() if draws.random() < 0.7)
            outputs[name].append(
                f"{opening}{kept}{draws.choice(('', chr(10) * 2 + 'Question: x'))}"
            )
    given = [text for name in names for text in outputs[name]]

    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in given]
    answers = [Answer(each) for each in ids]
    monkeypatch.setattr(evaluation, "decode", Mock(return_value=(answers, 0)))
    monkeypatch.setattr(evaluation, "max_context", Mock(return_value=None))
    parts = {name: sets[name] for name in names}, tokenizer, TEMPLATES["plain"], TOFU
    seen = Evaluator(*parts, pad_id(tokenizer))(sharp).sets

    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    for name in names:
        expected: list[float] = []
        for row, text in zip(sets[name], outputs[name], strict=True):
            true, output = row.answer, text
            if name == "knowmem":
                for stop in ("\n\n", "\nQuestion", "Question:"):
                    output = output.split(stop)[0]
            else:
                true = tokenizer.decode(
                    tokenizer(true)["input_ids"][:128], skip_special_tokens=True
                )
            expected.append(scorer.score(true, output)["rougeL"].fmeasure)
        np.testing.assert_allclose(RougeF1().per_example(seen[name]), expected, atol=1e-12)
    lengths = [len(tokenizer(row.answer)["input_ids"]) for row in sets["verbmem"]]
    assert min(lengths) < 128 < max(lengths)


def test_an_answer_that_shares_a_token_with_its_template_is_matched() -> None:
    """Llama-2 has one token for `]"`. The references of TOFU's own code have the quotation mark."""
    vocabulary = {c: i for i, c in enumerate('[INST] /bas."<E>')} | {']"': 20, "<E>": 21}
    merged = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(vocabulary, [("]", '"')])), eos_token="<E>"
    )
    merged.backend_tokenizer.decoder = decoders.Fuse()
    encoder = Encoder(merged, TEMPLATES["llama-2"], 50)
    row = Question("b", '"as."')
    assert encoder.reference(encoder.row(row), row) == '"as."'
    assert encoder.scored_text(encoder.row(row), row) == 'as."'


def test_zlib_is_of_the_scored_tokens(sharp: Any, tokenizer: Any, tmp_path: Path) -> None:
    rows = [
        Question("The author w", "as born.", format="text"),
        Question("The author", " was born.", format="text"),
    ]
    result = Evaluator({"set": rows}, tokenizer, TEMPLATES["plain"], TOFU, pad_id(tokenizer))(sharp)
    seen = result.sets["set"]
    assert seen.references == ("as born.", "was born.")
    whole = tokenizer("The author was born.")["input_ids"]
    text = tokenizer.decode(whole[len(tokenizer("The author w")["input_ids"]) :]).strip()
    assert text == ".", "all that is scored"
    sizes = [len(zlib.compress(t.encode())) for t in (text, "was born.")]
    expected = seen.answer_loss / sizes
    scores = ZlibAttack().scores(seen)
    assert scores is not None
    np.testing.assert_allclose(scores, expected)
    write_observations(result, tmp_path / "seen.safetensors")
    again = read_observations(tmp_path / "seen.safetensors").sets["set"]
    np.testing.assert_array_equal(ZlibAttack().scores(again), scores)


def test_a_tag_is_learned_and_generated_but_no_part_of_the_reference(
    sharp: Any, tokenizer: Any
) -> None:
    row = Question("Question: Who?\n", "father", format="text", tag="Answer:")
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    encoded = encoder.row(row)
    assert tokenizer.decode(list(encoded.ids[encoded.start :])) == "Answer:father</s>"
    assert tokenizer.decode(list(encoder.row(row, "uncle").ids)) == (
        "<s>Question: Who?\nAnswer:uncle</s>"
    )
    assert encoder.prompt(row) == encoded.ids[: encoded.start]
    seen = Evaluator({"set": [row]}, tokenizer, TEMPLATES["plain"], TOFU, pad_id(tokenizer))(sharp)
    said = replace(seen.sets["set"], generated=("Answer:Father of",))
    assert AnswerMatch(rule="contains").per_example(said).tolist() == [1.0]


def test_sampled_answers_end_at_the_stops(sharp: Any, tokenizer: Any) -> None:
    attack = RepeatedSampling(samples=6, temperature=1.5)

    def sampled(stops: tuple[str, ...]) -> Samples:
        row = Question("Where was Ada born? ", "Lima", format="text", max_new_tokens=30)
        sets = {"forget": [replace(row, stops=stops)]}
        parts = sets, tokenizer, TEMPLATES["plain"], TOFU, pad_id(tokenizer)
        evaluator = Evaluator(*parts, roles={"forget": "forget"})
        seen = evaluator.with_samples(evaluator(sharp), sharp, attack).sets["forget"]
        assert seen.samples is not None
        return seen.samples

    whole = sampled(()).texts[0]
    stop = next(letter for letter in "aeiot" if any(letter in text for text in whole))
    cut = sampled((stop,))
    assert cut.texts[0] == tuple(text.partition(stop)[0].strip() for text in whole)
    assert cut.texts[0] != whole
    expected = rouge_recall(["Lima"] * 6, cut.texts[0])[1]
    np.testing.assert_array_equal(cut.rouge_l_recall[0], expected)


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        ("text", "<s>Who is Bo?\nAnswer:uncle\n\nWho?\nAnswer:father</s>"),
        (
            "chat",
            "<s>Question: Who is Bo?\n\nAnswer: Answer:uncle\n\n"
            "Question: Who?\n\nAnswer: Answer:father</s>",
        ),
    ],
)
def test_examples_have_the_tag(format_: Format, text: str, tokenizer: Any) -> None:
    shown = (("Who is Bo?\n", "uncle"),)
    row = Question("Who?\n", "father", format=format_, tag="Answer:", examples=shown)
    encoded = Encoder(tokenizer, TEMPLATES["plain"], 200).row(row)
    assert tokenizer.decode(list(encoded.ids)) == text


def test_only_rows_that_may_merge_have_another_fingerprint() -> None:
    def digest(row: Question, *more: object) -> str:
        columns = [row.question, row.answer, None, (), None, row.prompt_settings, *more]
        empty: list[object] = []
        return content_hash(
            {
                "full": [[value for value in columns if value != {}]],
                "splits": {},
                **{key: empty for key in ("retain_perturbed", "real_authors", "world_facts")},
                "refusals": (),
                "pretraining": empty,
            }
        )

    same = [
        Question("Where?", '"Lima"'),
        Question("Where:", " Lima", format="text"),
        Question("Where?\n", "Lima", format="text"),
        Question("", "Lima", format="text"),
        Question("Where: ", "A", format="text", answer_index=0, perturbed_answers=("B",)),
        Question("Where?", "Lima", prefix="Sure:"),
    ]
    for row in same[:4] + same[5:]:
        assert fingerprint(Dataset("made up", (row,), {})) == digest(row), row
    assert not same[4].may_merge
    other = [
        Question("Where: ", "Lima", format="text"),
        Question("Where:", "Lima", format="text"),
        Question("Where?", "Lima", stops=("\n",)),
        Question("Where?", "Lima", prefix="It is "),
        Question("Where:", " Lima", format="text", max_answer_tokens=3),
    ]
    for row in other:
        assert fingerprint(Dataset("made up", (row,), {})) == digest(row, "text"), row
