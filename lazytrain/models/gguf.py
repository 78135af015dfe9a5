"""Weights of a GGUF file under Hugging Face names, dequantised tensor by tensor.

The file is mapped, not read; a tensor is unpacked to float32 when asked for. Families
of the Llama kind are known: llama, qwen2, qwen3. Llama's query and key rows are stored
in the order of another rotary convention and are put back.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput, MissingExtra

SUFFIX: Final = ".gguf"
FAMILIES: Final = ("llama", "qwen2", "qwen3")
_OUTER: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INNER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# What readers raise where a header says what the file does not hold.
_DAMAGE: Final = (
    *(OSError, ValueError, IndexError, KeyError, TypeError),
    *(OverflowError, MemoryError, struct.error),
)
# What inference engines precompute; a Hugging Face model has no such weight.
_DERIVED: Final = ("rope_freqs",)


def is_gguf(path: Path) -> bool:
    """Say whether a path names a GGUF file that is there."""
    return path.suffix == SUFFIX and path.is_file()


def hugging_face_name(stored: str) -> str | None:
    """Return the Hugging Face name of a stored tensor, or None if it is unknown."""
    stem, _, kind = stored.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if found is None or found[2] not in _INNER:
        return None
    return f"model.layers.{found[1]}.{_INNER[found[2]]}.{kind}"


class GgufFile(Mapping[str, Tensor]):
    """A GGUF file's tensors by Hugging Face name, float32, read when asked for.

    Raises:
        MissingExtra: If the ``gguf`` package is not installed.
        InvalidInput: If the file is none, or of a family or layout not known here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = _reader(path)
        self.family = self._text("general.architecture")
        if self.family not in FAMILIES:
            remedy = f"only {', '.join(FAMILIES)} are read; give safetensors instead"
            raise InvalidInput("weights", f"{path.name}: {self.family}", remedy)
        self._tensors = self._named()
        self._last: tuple[str, Tensor] | None = None

    def _named(self) -> dict[str, Any]:
        """Return the stored tensors by Hugging Face name."""
        found = {}
        for stored in self._reader.tensors:
            name = hugging_face_name(stored.name)
            if name is not None:
                found[name] = stored
            elif stored.name.partition(".")[0] not in _DERIVED:
                remedy = f"a tensor of {self._path.name} that no known family has"
                raise InvalidInput("weights", stored.name, remedy)
        return found

    def _text(self, key: str) -> str:
        field = self._reader.get_field(key)
        return str(field.contents()) if field is not None else ""

    def _number(self, key: str) -> int:
        field = self._reader.get_field(f"{self.family}.{key}")
        if field is None:
            raise InvalidInput("weights", key, f"is missing in {self._path}")
        return int(field.contents())

    def __getitem__(self, name: str) -> Tensor:
        """Unpack one tensor, float32.

        Raises:
            InvalidInput: If it is packed in a way that cannot be undone here.
        """
        from gguf import dequantize

        if self._last is not None and self._last[0] == name:
            return self._last[1]
        stored = self._tensors[name]
        self._last = None
        try:
            unpacked = dequantize(stored.data, stored.tensor_type)
        # gguf raises these for a packing that it does not know and for damaged bytes.
        except (NotImplementedError, ValueError) as error:
            remedy = f"cannot be unpacked ({error}); give a file of another packing"
            raise InvalidInput("weights", stored.name, remedy) from error
        shape = tuple(int(size) for size in reversed(stored.shape))
        tensor = torch.tensor(unpacked, dtype=torch.float32).view(shape)
        if self.family == "llama":
            tensor = self._rows_in_order(name, tensor)
        self._last = (name, tensor)
        return tensor

    def _rows_in_order(self, name: str, tensor: Tensor) -> Tensor:
        """Undo the interleaving of a head's two rotary halves."""
        if ".q_proj." in name:
            heads = self._number("attention.head_count")
        elif ".k_proj." in name:
            heads = self._number("attention.head_count_kv")
        else:
            return tensor
        if heads < 1 or tensor.shape[0] % (2 * heads):
            remedy = f"{heads} heads do not divide its rows; fetch the file again"
            raise InvalidInput(name, tuple(tensor.shape), remedy)
        pairs = tensor.view(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)

    def __contains__(self, name: object) -> bool:
        """Say whether a name is there, without unpacking it."""
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        """Iterate over names."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._tensors)


def _reader(path: Path) -> Any:
    """Map a file.

    Raises:
        MissingExtra: If the ``gguf`` package is not installed.
        InvalidInput: If the file is no GGUF file, or cut short.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingExtra("gguf", f"{path.name} is a GGUF file") from error
    try:
        return GGUFReader(path)
    except _DAMAGE as error:
        remedy = f"is no whole GGUF file ({error}); fetch it again"
        raise InvalidInput("weights", str(path), remedy) from error


def gguf_config(path: Path) -> Any:
    """Return the Hugging Face configuration that a GGUF file's metadata describe.

    Raises:
        InvalidInput: If transformers cannot make one of them.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    except _DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        remedy = (
            f"is no whole GGUF file, or of no known model ({reason}); fetch it again, "
            "or give safetensors"
        )
        raise InvalidInput("weights", str(path), remedy) from error
