"""EOS as padding: open-unlearning's rules, written down again with the library's own masks."""

import copy
import zlib
from typing import Any

import pytest
import torch

from unlearnbench.api.benchmark import Question
from unlearnbench.benchmarks.tofu_metrics import ROLES
from unlearnbench.config.profiles import OPEN_UNLEARNING
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.chat_template import resolve_template
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.packed_attention import can_pack
from unlearnbench.models.row_states import RowReader
from unlearnbench.models.token_row import Row

TURNS = "{%% for m in messages %%}<s>{{ m.role }}\n{{ m.content }}</s>%s{%% endfor %%}"
OPENED = "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
TEMPLATES = {
    "eos ends": TURNS % "" + OPENED,
    "newline ends": TURNS % "\n" + OPENED,
    "eos begins": "</s>" + TURNS % "\n" + OPENED,
}


def chatty(tokenizer: Any, template: str, pad: str | None = None) -> Any:
    made = copy.deepcopy(tokenizer)
    made.chat_template, made.pad_token = TEMPLATES[template], pad
    return made


def conversation(tokenizer: Any, question: str, answer: str) -> tuple[list[int], int]:
    """Ids of the whole conversation, ended by EOS, and the number of the prompt's."""
    asked = {"role": "user", "content": question}
    answered = {"role": "assistant", "content": answer}
    how: dict[str, Any] = {"tokenize": True, "return_dict": False}
    whole = tokenizer.apply_chat_template([asked, answered], **how)
    prompt = tokenizer.apply_chat_template([asked], add_generation_prompt=True, **how)
    eos = tokenizer.eos_token_id
    return [*whole, *([] if whole[-1] == eos else [eos])], len(prompt)


def plain_logprobs(model: Any, tokenizer: Any, question: str, answer: str) -> torch.Tensor:
    ids, prompt = conversation(tokenizer, question, answer)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    given = torch.tensor([ids])
    logits = model(input_ids=given, attention_mask=given.ne(pad).long()).logits[0, :-1]
    found: torch.Tensor = logits.log_softmax(1).gather(1, given[0, 1:, None])
    return found[prompt - 1 :, 0]


def plain_answer(model: Any, tokenizer: Any, question: str, limit: int) -> str:
    prompt = conversation(tokenizer, question, "")[1]
    ids = torch.tensor([conversation(tokenizer, question, "")[0][:prompt]])
    eos = tokenizer.eos_token_id
    padded = torch.nn.functional.pad(ids, (3, 0), value=eos)  # on the left, as in a batch
    how: dict[str, Any] = {"max_new_tokens": limit, "do_sample": False, "pad_token_id": eos}
    mask = padded.ne(eos).long()
    found = model.generate(padded, attention_mask=mask, eos_token_id=eos, **how)
    return str(tokenizer.decode(found[0, padded.shape[1] :], skip_special_tokens=True)).strip()


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("template", TEMPLATES)
def test_scores_and_answers_are_the_librarys_under_that_mask(
    template: str,
    packs: bool,
    sharp: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat, model = chatty(tokenizer, template), sharp.double()
    if not packs:
        monkeypatch.setattr("unlearnbench.evaluation.predictor.can_pack", lambda *_: False)  # pyright: ignore
    evaluator = Evaluator(
        {"forget": questions[:4]},
        chat,
        resolve_template("chat", chat),
        OPEN_UNLEARNING,
        pad_id(chat),
        roles=ROLES,
        extra={"grad_norm"},
    )
    found = evaluator(model).sets["forget"]
    for i, question in enumerate(questions[:4]):
        asked = question.question
        with torch.no_grad():
            one, other = (
                plain_logprobs(model, chat, asked, answer)
                for answer in (question.answer, question.perturbed_answers[0])
            )
            said = plain_answer(model, chat, asked, 200)
        assert found.answer_loss[i] == pytest.approx(-one.mean().item(), abs=1e-9)
        assert found.perturbed_loss[i, 0] == pytest.approx(-other.mean().item(), abs=1e-9)
        assert found.answer_tokens[i] == len(one)
        assert found.generated[i] == said
        # Its source strips a reference, and the text that a loss is compared with by zlib has all
        # that is scored.
        assert found.references[i] == question.answer
        if template == "eos ends":
            assert found.compressed_bytes is None
        else:
            assert found.compressed_bytes is not None
            size = len(zlib.compress(f"{question.answer}\n".encode()))
            assert found.compressed_bytes[i] == size
    model.zero_grad()
    asked, answer = questions[0].question, questions[0].answer
    (-plain_logprobs(model, chat, asked, answer)[:-1].mean()).backward()
    norms = [p.grad.norm() for p in model.parameters()]
    assert found.grad_norm is not None
    assert found.grad_norm[0] == pytest.approx(float(torch.stack(norms).mean()), rel=1e-6)
    entry = evaluator.padding_entry["eos_as_padding"]
    assert entry["masked_tokens"] > 0
    assert entry["behind_answer"] == ("</s>" if template == "eos ends" else "</s>\n")


def test_a_padding_token_of_its_own_masks_nothing(
    tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    chat = chatty(tokenizer, "newline ends", "<pad>")
    template = resolve_template("chat", chat)
    theirs = Encoder(chat, template, 200, eos_as_padding=True).row(questions[0])
    ours = Encoder(chat, template, 200).row(questions[0])
    assert theirs.masked == ours.masked == ()
    newline = chat("\n", add_special_tokens=False)["input_ids"]
    assert theirs.ids == (*ours.ids, *newline, chat.eos_token_id)
    assert theirs.start == ours.start


def test_training_is_under_that_mask(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    chat, model = chatty(tokenizer, "newline ends"), sharp.double()
    encoder = Encoder(chat, resolve_template("chat", chat), 200, eos_as_padding=True)
    rows = [encoder.row(question) for question in questions[:3]]
    reader = RowReader(model, pad_id(chat))
    assert not reader.packs(model, rows)
    found = reader(model, rows)
    logprobs = found.projection(found.hidden).log_softmax(1).gather(1, found.labels[:, None])[:, 0]
    expected = [plain_logprobs(model, chat, q.question, q.answer) for q in questions[:3]]
    torch.testing.assert_close(logprobs, torch.cat(expected), rtol=1e-9, atol=1e-9)
    gradient = torch.autograd.grad(logprobs.sum(), model.get_input_embeddings().weight)
    wanted = torch.autograd.grad(torch.cat(expected).sum(), model.get_input_embeddings().weight)
    torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-9)
    without = Row(rows[0].ids, rows[0].start)
    assert reader.packs(model, [without]) is can_pack(model, 200)
    assert rows[0].without_first(1).masked == rows[0].masked
