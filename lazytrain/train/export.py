"""A run, a checkpoint, a folder or a GGUF file as a Hugging Face folder, verified.

What is written is loaded again by plain transformers, and compared weight by weight and
logit by logit with what the trainer computes, before the folder gets its name.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput, LazyTrainError
from lazytrain.models.decoder import Decoder
from lazytrain.models.gguf import is_gguf
from lazytrain.models.given import GivenWeights
from lazytrain.models.load import ADAPTER, folder_config
from lazytrain.records import RunRecord, make_folder, read
from lazytrain.train import checkpoint
from lazytrain.train.checkpoint import Broken, Checkpoint
from lazytrain.train.probe import probe_ids, trainer_logits
from lazytrain.train.resume import FOLDER
from lazytrain.train.source import Source, load_source, model_folder_source
from lazytrain.train.tensor_files import SHARD_BYTES
from lazytrain.train.weights_io import save_pretrained

log = logging.getLogger(__name__)
WEIGHTS: Final = "weights"
PROBE_TEXT: Final = "Grüße, 世界 😀!  It's 3.14 + 12345\n\tdone."
# Largest difference of logits in fp32, as a share of the largest logit. Weights of a
# lower precision are widened on both sides, which is exact: what is compared is then
# the model, not the rounding of two ways to compute it.
TOLERANCE: Final = 2e-5


_REMEDY_NAN: Final = (
    "holds NaN or infinity: the training diverged; export an earlier checkpoint, or "
    "train again with a lower learning_rate"
)
_REMEDY_RANGE: Final = (
    "holds values that the dtype cannot express; export with --dtype bfloat16 or keep"
)


class NotVerified(LazyTrainError):
    """What was exported does not load as what was trained; nothing was left."""


@dataclass(frozen=True)
class Origin:
    """What is exported, and where it was found."""

    source: Source
    path: Path

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Weights by Hugging Face name."""
        assert self.source.state_dict is not None
        return self.source.state_dict


@dataclass(frozen=True)
class Exported:
    """What was written and how well it agrees.

    Attributes:
        folder: The Hugging Face folder.
        origin: What it was made from.
        num_parameters: Parameters, a tied weight counted once.
        dtype: Of the weights.
        logit_difference: Largest, as a share of the largest logit; None: not verified.
    """

    folder: Path
    origin: Path
    num_parameters: int
    dtype: str
    logit_difference: float | None


def find_origin(path: Path) -> Origin:
    """Return what a path stands for: a run, a checkpoint, a folder or a GGUF file.

    Of a run the trained weights are taken, or the newest whole checkpoint where
    training went on, or was cut short.

    Raises:
        InvalidInput: If it is none of these, or not whole.
    """
    if (path / checkpoint.MANIFEST).is_file():
        try:
            return _of_checkpoint(checkpoint.open_whole(path))
        except Broken as error:
            remedy = f"is no whole checkpoint: {error}"
            raise InvalidInput("origin", str(path), remedy) from error
    if is_gguf(path) or (path / "config.json").is_file():
        return Origin(load_source(str(path), None), path)
    if (path / ADAPTER).is_file():
        folder_config(path)  # says what an adapter is not
    newest, skipped = checkpoint.newest(path / FOLDER)
    if newest is None and not (path / WEIGHTS).is_dir():
        reasons = "; ".join(skipped.values())
        remedy = f"holds no weights and no whole checkpoint {reasons}".strip()
        raise InvalidInput("origin", str(path), remedy)
    if newest is not None and newest.state.step > _trained_steps(path):
        return _of_checkpoint(newest)
    _tell_diverged(path)
    return Origin(load_source(str(path / WEIGHTS), None), path / WEIGHTS)


def _trained_steps(run: Path) -> int:
    """Return the steps behind a run's weights; -1 if there are none."""
    record = _record_of(run)
    return -1 if record is None or not (run / WEIGHTS).is_dir() else record.num_steps


def _record_of(run: Path) -> RunRecord | None:
    """Return a run's record, if it has left one."""
    record = run / "record.json"
    return read(RunRecord, record) if record.is_file() else None


def _tell_diverged(run: Path) -> None:
    """Say that a run's weights are those that its last finite step left."""
    record = _record_of(run)
    if record is not None and record.status == "diverged":
        told = "%s: the run diverged (%s); its checkpoints are of before"
        log.warning(told, run, record.reason)


def _of_checkpoint(found: Checkpoint) -> Origin:
    source = model_folder_source(found.model_folder, found.weights)
    return Origin(source, found.folder)


def export(
    origin: Origin,
    out: Path,
    *,
    dtype: torch.dtype | None = None,
    shard_bytes: int = SHARD_BYTES,
    verify: bool = True,
) -> Exported:
    """Write a Hugging Face folder; it appears when it is whole and verified.

    Args:
        origin: What to export.
        out: Where to; must not be there, or be empty.
        dtype: Convert weights to it; None keeps them.
        shard_bytes: Largest file.
        verify: Load the folder with plain transformers and compare.

    Raises:
        InvalidInput: If ``out`` is taken or weights are missing.
        NotVerified: If the folder does not load as the trained model.
    """
    place = _free_place(out)
    source = origin.source
    decoder = Decoder(source.config)
    kept = origin.weights["model.norm.weight"].dtype
    weights = Converted(origin.weights, decoder, dtype or kept)
    # Inside a folder that is there: it may be a disk of its own, or someone's shell's.
    near = place if place.exists() else place.parent
    with tempfile.TemporaryDirectory(dir=near, prefix=f".{place.name}.") as parent:
        folder = Path(parent) / place.name
        save_pretrained(
            folder,
            weights.items(),
            source.config,
            source.tokenizer,
            shard_bytes,
            source.generation,
        )
        difference = verified(folder, weights, source) if verify else None
        _put(folder, place)
    name = str(weights.dtype).removeprefix("torch.")
    return Exported(out, origin.path, decoder.num_parameters, name, difference)


def _free_place(out: Path) -> Path:
    """Return where a folder is written: a symbolic link's target, not the link.

    Raises:
        InvalidInput: If something is there, or nothing can be written there.
    """
    place = out.resolve()
    if place.exists():
        if not place.is_dir():
            raise InvalidInput("out", str(out), "is no folder; give another")
        if any(place.iterdir()):
            raise InvalidInput("out", str(out), "is not empty; give another folder")
    is_new = not place.exists()
    make_folder(place, "out")
    if is_new:  # tried only: it appears when it is whole
        place.rmdir()
    return place


def _put(folder: Path, place: Path) -> None:
    """Move a finished folder to its place, or its files into an empty one.

    The configuration comes last: no loader takes the folder for a model before.
    """
    if not place.exists():
        folder.rename(place)
        return
    for path in sorted(folder.iterdir(), key=lambda path: path.name == "config.json"):
        path.rename(place / path.name)


class Converted(Mapping[str, Tensor]):
    """A model's weights in one dtype, in the model's order, converted when read.

    Raises:
        InvalidInput: If a weight of the model is missing.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], decoder: Decoder, dtype: torch.dtype
    ) -> None:
        self._weights = GivenWeights(decoder, weights)
        self.dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        """Read and convert one weight.

        Raises:
            InvalidInput: If it holds what no dtype or this one cannot express.
        """
        kept = self._weights[name]
        tensor = kept.to(self.dtype)
        if not torch.isfinite(tensor).all():
            remedy = _REMEDY_NAN if not torch.isfinite(kept).all() else _REMEDY_RANGE
            raise InvalidInput("weights", name, remedy)
        return tensor

    def __iter__(self) -> Iterator[str]:
        """Iterate over names."""
        return iter(self._weights)

    def __len__(self) -> int:
        """Return the number of weights."""
        return len(self._weights)


def verified(folder: Path, weights: Converted, source: Source) -> float:
    """Load a folder with plain transformers and compare it with the trainer.

    Returns:
        The largest difference of logits, as a share of the largest logit.

    Raises:
        NotVerified: Naming what differs.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True
    )
    odd = {kind: sorted(names) for kind, names in report.items() if names}
    if odd:
        raise NotVerified(f"transformers reports {odd}")
    _compare_weights(model, weights)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    if tied != Decoder(source.config).tied:
        raise NotVerified(
            f"embedding and head are tied: {tied}, in training {not tied}"
        )
    _compare_tokenizers(AutoTokenizer.from_pretrained(folder), source.tokenizer)
    return _compare_logits(model.eval(), weights, source.config)


def _compare_tokenizers(loaded: Any, trained: Any) -> None:
    """Compare what a loaded tokenizer does; its class may add tokens of its own."""
    if not trained.get_vocab().items() <= loaded.get_vocab().items():
        raise NotVerified("the tokenizer has another vocabulary")
    if loaded.chat_template != trained.chat_template:
        raise NotVerified("the tokenizer has another chat template")
    for text in (PROBE_TEXT, *trained.all_special_tokens):
        if loaded(text)["input_ids"] != trained(text)["input_ids"]:
            raise NotVerified(f"the tokenizer splits {text!r} in another way")
    if loaded.eos_token_id != trained.eos_token_id:
        raise NotVerified("the tokenizer has another end token")


def _compare_weights(model: Any, weights: Converted) -> None:
    for name, parameter in model.named_parameters():
        if name not in weights:
            raise NotVerified(f"{name} is in the loaded model and was not trained")
        if not torch.equal(parameter.detach(), weights[name]):
            raise NotVerified(f"{name} differs after loading")


def _compare_logits(model: Any, weights: Converted, config: Any) -> float:
    ids = probe_ids(Decoder(config).vocab_size)
    with torch.no_grad():
        loaded = model.float()(ids, use_cache=False).logits.double()
    trained = trainer_logits(config, weights, ids, torch.float32).double()
    difference = float((loaded - trained).abs().max() / trained.abs().max())
    # Written so that NaN fails too.
    if not difference <= TOLERANCE:
        raise NotVerified(f"logits differ by {difference:.1e} of the largest")
    return difference
