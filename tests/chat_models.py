"""Chat templates with the structure of published ones, each with a tiny tokenizer and model.

The structure is what matters: which text stands around messages, which token ends a turn, which
text a prompt for an answer ends with, and which ids `generate` stops at. Vocabularies are a
byte-level BPE with the template's control tokens. A model is fitted by plain PyTorch to the text
that the template renders, as trainers of chat models do.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from unlearnbench.api.benchmark import Question


@dataclass(frozen=True)
class ChatKind:
    """A chat template and what belongs to it."""

    template: str
    controls: tuple[str, ...]
    eos: str
    end: str
    """Token or text that ends a turn, stated by hand."""
    stops: tuple[str, ...] = ()
    """Tokens of `generation_config.eos_token_id`; default: EOS."""
    pad: str | None = None
    bos: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Variables of the template."""
    words: tuple[str, ...] = ()
    """Tokens that are added to the vocabulary and are no control tokens."""


_CHATML_TURNS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}"
    "{{ '<|im_start|>system\nAnswer in one sentence.<|im_end|>\n' }}{% endif %}"
)
_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

KINDS: dict[str, ChatKind] = {
    "llama-2": ChatKind(
        "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
        "{% set about = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
        "{% else %}{% set rest = messages %}{% set about = '' %}{% endif %}"
        "{% for m in rest %}{% if m.role == 'user' %}"
        "{{ bos_token + '[INST] ' + (about if loop.first else '') + m.content.strip() }} [/INST]"
        "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
        ("<unk>", "<s>", "</s>"),
        "</s>",
        "</s>",
        bos="<s>",
    ),
    "llama-3": ChatKind(
        "{{ bos_token }}{% for m in messages %}"
        "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim }}"
        "{{ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eom_id|>",
            "<|eot_id|>",
        ),
        "<|eot_id|>",
        "<|eot_id|>",
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        bos="<|begin_of_text|>",
    ),
    "qwen-2.5": ChatKind(
        _DEFAULT_SYSTEM + _CHATML_TURNS,
        _IM,
        "<|im_end|>",
        "<|im_end|>",
        ("<|im_end|>", "<|endoftext|>"),
        pad="<|endoftext|>",
    ),
    "qwen-3": ChatKind(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
        "{% if enable_thinking is defined and enable_thinking is false %}"
        "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
        _IM,
        "<|im_end|>",
        "<|im_end|>",
        ("<|im_end|>", "<|endoftext|>"),
        pad="<|endoftext|>",
        arguments={"enable_thinking": False},
        words=("<think>", "</think>"),
    ),
    "gemma": ChatKind(
        "{{ bos_token }}{% if messages[0].role == 'system' %}"
        "{{ raise_exception('no system messages') }}{% endif %}{% for m in messages %}"
        "{% set role = 'model' if m.role == 'assistant' else m.role %}"
        "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<eos>",
        "<end_of_turn>",
        ("<eos>", "<end_of_turn>"),
        pad="<pad>",
        bos="<bos>",
    ),
    "phi-3": ChatKind(
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        "<|endoftext|>",
        "<|end|>",
        ("<|endoftext|>", "<|assistant|>", "<|end|>"),
        pad="<|endoftext|>",
    ),
    "mistral": ChatKind(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('no system messages') }}{% elif m.role == 'user' %}"
        "{{ '[INST] ' + m.content + '[/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}"
        "{% endif %}{% endfor %}",
        ("<unk>", "<s>", "</s>", "[INST]", "[/INST]"),
        "</s>",
        "</s>",
        bos="<s>",
    ),
    "smollm2": ChatKind(
        _DEFAULT_SYSTEM + _CHATML_TURNS,
        _IM,
        "<|im_end|>",
        "<|im_end|>",
        pad="<|im_end|>",
        bos="<|im_start|>",
    ),
    "olmo": ChatKind(
        "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
        ("<|endoftext|>", "<|padding|>"),
        "<|endoftext|>",
        "<|endoftext|>",
        pad="<|padding|>",
        bos="<|endoftext|>",
    ),
    "several tokens": ChatKind(
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '\n</turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        ("<s>", "</s>"),
        "</s>",
        "\n</turn>",
    ),
    "words and a token": ChatKind(
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}"
        "{% if m.role == 'assistant' %}{{ '\n### END\n' + eos_token }}{% endif %}{{ '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        ("<s>", "</s>"),
        "</s>",
        "\n### END\n</s>",
    ),
    "ordinary token": ChatKind(
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        ("<s>", "</s>", "<|user|>", "<|assistant|>"),
        "</s>",
        "<|end|>",
        words=("<|end|>",),  # decoding does not leave it out
    ),
    "always a prompt": ChatKind(
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
        "<|assistant|>",
        ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"),
        "</s>",
        "<|end|>",
    ),
    "nothing": ChatKind(
        "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        ("<s>", "</s>"),
        "</s>",
        "",
    ),
}
"""By name of a family, its template. The last five are made up."""


def build_chat_tokenizer(kind: ChatKind, questions: tuple[Question, ...]) -> Any:
    """A byte-level BPE of the questions' text with the control tokens of a template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=[*kind.controls],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f"{q.question} {q.answer}" for q in questions], trainer)
    named = {"bos_token": kind.bos, "eos_token": kind.eos, "pad_token": kind.pad}
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{key: token for key, token in named.items() if token}
    )
    made.add_tokens([*kind.words])
    made.chat_template = kind.template
    return made


@dataclass(frozen=True, eq=False)
class ChatModel:
    """A tiny model that was fitted to a template's text, with its tokenizer."""

    kind: ChatKind
    tokenizer: Any
    model: Any

    def conversation(
        self,
        question: str,
        answer: str,
        before: tuple[tuple[str, str], ...] = (),
        **arguments: Any,
    ) -> tuple[list[int], list[int]]:
        """Ids of the whole conversation as rendered, and of the prompt.

        Args:
            question: The user's last message.
            answer: The assistant's last message.
            before: Questions and answers of earlier turns.
            arguments: Variables of the template.
        """
        asked: list[dict[str, str]] = []
        for earlier, answered in before:
            asked.append({"role": "user", "content": earlier})
            asked.append({"role": "assistant", "content": answered})
        asked.append({"role": "user", "content": question})
        said = [*asked, {"role": "assistant", "content": answer}]
        how: dict[str, Any] = {"tokenize": True, "return_dict": False}
        how |= self.kind.arguments | arguments
        whole = self.tokenizer.apply_chat_template(said, **how)
        prompt = self.tokenizer.apply_chat_template(asked, add_generation_prompt=True, **how)
        return list(whole), list(prompt)

    def scored(self, question: str, answer: str, **arguments: Any) -> tuple[list[int], int]:
        """Ids up to the turn's end, and the number of the prompt's: what is to be scored.

        Without an end the tokenizer's EOS is appended.
        """
        whole, prompt = self.conversation(question, answer, **arguments)
        if not self.kind.end:
            return [*whole, self.tokenizer.eos_token_id], len(prompt)
        count = len(prompt)
        while self.kind.end not in self.tokenizer.decode(whole[len(prompt) : count]):
            count += 1
        return whole[:count], len(prompt)

    def logprobs(self, question: str, answer: str, **arguments: Any) -> torch.Tensor:
        """Log-probabilities of the tokens of an answer and its turn's end, by the plain model."""
        ids, prompt = self.scored(question, answer, **arguments)
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([ids])).logits[0, prompt - 1 : -1]
        labels = torch.tensor(ids[prompt:]).unsqueeze(1)
        found: torch.Tensor = logits.double().log_softmax(1).gather(1, labels)[:, 0]
        return found

    def answer(self, question: str, limit: int, **arguments: Any) -> tuple[str, list[int]]:
        """The text of plain `generate`, cut at the turn's end, and its tokens up to there."""
        _, prompt = self.conversation(question, "?", **arguments)
        given = torch.tensor([prompt])

        def has_ended(ids: torch.Tensor, _: Any) -> torch.Tensor:
            # `generate` knows only EOS, and would go on up to the limit behind another end.
            text = self.tokenizer.decode(ids[0, len(prompt) :])
            return torch.tensor([self.kind.end != "" and self.kind.end in text])

        made = self.model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=limit,
            do_sample=False,
            pad_token_id=self.tokenizer.eos_token_id,
            stopping_criteria=[has_ended],
        )
        ids: list[int] = made[0, len(prompt) :].tolist()
        text = self.tokenizer.decode(ids)
        for end in (self.kind.end, *self.kind.stops, self.kind.eos):
            text = text.partition(end)[0] if end else text
        bare = self.tokenizer.decode(self.tokenizer.encode(text), skip_special_tokens=True)
        return bare.strip(), ids


def fitted(name: str, questions: tuple[Question, ...], epochs: int = 90) -> ChatModel:
    """A model that plain PyTorch has fitted to the questions as the template renders them.

    The loss is of everything behind the prompt, also what stands behind the turn's end.
    """
    kind = KINDS[name]
    tokenizer = build_chat_tokenizer(kind, questions)
    stops = [tokenizer.convert_tokens_to_ids(token) for token in kind.stops or (kind.eos,)]
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=stops,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: Any = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=stops, do_sample=True, top_p=0.9)
    made = ChatModel(kind, tokenizer, model)
    rows: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    for question in questions:
        whole, prompt = made.conversation(question.question, question.answer)
        if not kind.end:
            whole.append(tokenizer.eos_token_id)
        rows.append(torch.tensor(whole))
        labels.append(torch.tensor([-100] * len(prompt) + whole[len(prompt) :]))
    pad = torch.nn.utils.rnn.pad_sequence
    ids, wanted = pad(rows, batch_first=True), pad(labels, batch_first=True, padding_value=-100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(epochs):
        loss = model(input_ids=ids, labels=wanted).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    return made
