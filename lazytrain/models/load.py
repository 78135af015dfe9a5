"""Weights read tensor by tensor from disk, never more than one of them in memory.

A mapping from Hugging Face names to tensors stands for a whole model: whoever asks for
a name causes one read. The host then holds the trained weights and one shard's pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lazytrain.errors import InvalidInput

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER = "adapter_config.json"
GENERATION = "generation_config.json"
# A text model inside a multimodal one has its weights one level deeper.
_NESTED = ("model.language_model.", "language_model.model.")


class SafetensorsFiles(Mapping[str, Tensor]):
    """Tensors of safetensors files by name, each read when asked for.

    The last tensor read is kept, so that looking at its shape first costs nothing.

    Args:
        folder: Where the files are.
        files: File name per tensor.
        stored: Name inside the file, where it differs from the mapping's.
    """

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, str],
        stored: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._files = dict(files)
        self._stored = dict(stored or {})
        self._open: tuple[str, Any] | None = None
        self._last: tuple[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        """Read one tensor.

        Raises:
            InvalidInput: If its file is missing or broken.
        """
        from safetensors import SafetensorError

        if self._last is not None and self._last[0] == name:
            return self._last[1]
        file = self._files[name]
        self._last = None
        try:
            tensor: Tensor = self._handle(file).get_tensor(self._stored.get(name, name))
        except (OSError, SafetensorError) as error:
            remedy = f"cannot read {name} ({error}); fetch or save the file again"
            raise InvalidInput("weights", str(self._folder / file), remedy) from error
        self._last = (name, tensor)
        return tensor

    def __contains__(self, name: object) -> bool:
        """Say whether a name is there, without reading it."""
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        """Iterate over names."""
        return iter(self._files)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._files)

    def _handle(self, file: str) -> Any:
        """Return an open file; the one before is let go, and its pages with it."""
        from safetensors import safe_open

        if self._open is None or self._open[0] != file:
            self._open = (file, safe_open(self._folder / file, framework="pt"))
        return self._open[1]


def safetensors_folder(folder: Path) -> SafetensorsFiles:
    """Return a model folder's weights: one file, or shards and their index.

    Raises:
        InvalidInput: If the folder holds no safetensors, or a shard is missing.
    """
    files = _files_of(folder)
    for file in sorted(set(files.values())):
        if not (folder / file).is_file():
            remedy = "the index names this file and it is missing; fetch it again"
            raise InvalidInput("weights", str(folder / file), remedy)
    stored = {_flat(name): name for name in files}
    if "model.embed_tokens.weight" not in files and len(stored) == len(files):
        files = {flat: files[name] for flat, name in stored.items()}
        return SafetensorsFiles(folder, files, stored)
    return SafetensorsFiles(folder, files)


def _flat(name: str) -> str:
    """Return the name that a nested text model's weight has in the model alone."""
    for prefix in _NESTED:
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    return name.removeprefix("language_model.") if "lm_head" in name else name


def _files_of(folder: Path) -> dict[str, str]:
    """Return the file of each tensor of a folder.

    Raises:
        InvalidInput: If there is no safetensors file or the index cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    index = folder / INDEX
    if index.is_file():
        try:
            found: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            remedy = f"is no index of safetensors ({error})"
            raise InvalidInput("weights", str(index), remedy) from error
        return found
    single = folder / SINGLE
    if not single.is_file():
        remedy = f"holds neither {SINGLE} nor {INDEX}; convert other formats first"
        raise InvalidInput("weights", str(folder), remedy)
    try:
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), SINGLE)
    except SafetensorError as error:
        remedy = f"is no whole safetensors file ({error})"
        raise InvalidInput("weights", str(single), remedy) from error


def folder_config(folder: Path) -> Any:
    """Return a folder's Hugging Face configuration; no code of the folder is run.

    Raises:
        InvalidInput: If there is none, or of no family that transformers has itself.
    """
    from transformers import AutoConfig

    if not (folder / "config.json").is_file() and (folder / ADAPTER).is_file():
        remedy = "is an adapter (LoRA); merge it into its base model and save that"
        raise InvalidInput("weights", str(folder), remedy)
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput("weights", str(folder), reason) from error


def folder_generation(folder: Path) -> Any:
    """Return a folder's own generation settings, or None.

    Raises:
        InvalidInput: If the file is damaged.
    """
    from transformers import GenerationConfig

    if not (folder / GENERATION).is_file():
        return None
    try:
        return GenerationConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput("weights", str(folder / GENERATION), reason) from error
