"""The built-in byte-level tokenizer, and any Hugging Face one by name or path.

The built-in one needs no download: 256 byte tokens and a few marks, so that random
weights of any shape can be trained and evaluated on any text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lazytrain.errors import InvalidInput

BUILT_IN: Final = ("random", "byte-level")
PAD: Final = "<|pad|>"
END: Final = "<|end|>"
ROLE_MARKS: Final = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def load_tokenizer(name_or_path: str, vocab_size: int) -> Any:
    """Return the tokenizer that goes with a model.

    Args:
        name_or_path: ``random`` or ``byte-level`` for the built-in one; else a folder,
            a GGUF file or a hub id.
        vocab_size: The model's vocabulary; every token id lies below it.

    Raises:
        InvalidInput: If there is no such tokenizer, it has no end token, or the model's
            vocabulary is too small for it.
    """
    if name_or_path in BUILT_IN:
        tokenizer = byte_level_tokenizer()
    else:
        tokenizer = _pretrained(name_or_path)
    if len(tokenizer) > vocab_size:
        remedy = f"the tokenizer has {len(tokenizer)} tokens; the model needs as many"
        raise InvalidInput("vocab_size", vocab_size, remedy)
    return tokenizer


def byte_level_tokenizer() -> Any:
    """Build the byte-level tokenizer: bytes are 0-255, then the marks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLE_MARKS),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _byte_symbols() -> list[str]:
    """Return the printable symbol that byte-level models use for each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = (byte for byte in range(256) if byte not in printable)
    places = {byte: 256 + place for place, byte in enumerate(hidden)}
    return [chr(places.get(byte, byte)) for byte in range(256)]


def _pretrained(name_or_path: str) -> Any:
    from transformers import AutoTokenizer

    try:
        path = Path(name_or_path)
        if path.suffix == ".gguf":
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        else:
            tokenizer = AutoTokenizer.from_pretrained(
                name_or_path, trust_remote_code=False
            )
    except (OSError, ValueError) as error:
        kind = (
            "folder holds no tokenizer that transformers itself knows"
            if Path(name_or_path).exists()
            else (
                "is neither a folder nor a reachable hub id; give a local path, or "
                "weights: random for the built-in byte-level tokenizer"
            )
        )
        raise InvalidInput("tokenizer", name_or_path, kind) from error
    if not tokenizer.is_fast:
        remedy = "is a slow tokenizer; save its tokenizer.json and give that folder"
        raise InvalidInput("tokenizer", name_or_path, remedy)
    if tokenizer.eos_token_id is None:
        raise InvalidInput("tokenizer", name_or_path, "has no end-of-text token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
