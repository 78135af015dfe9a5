"""Room on the disk for what a fine-tuning leaves, asked before it begins.

A disk that is full at the end costs the whole run; one that is full before costs a
minute.
"""

from __future__ import annotations

import logging

from lazytrain.errors import InvalidInput
from lazytrain.optim.state import bytes_per_parameter
from lazytrain.profile.memory import disk_free_bytes
from lazytrain.train import checkpoint
from lazytrain.train.finetune_settings import FineTune
from lazytrain.train.held_room import BESIDE_WEIGHTS_BYTES, weights_bytes
from lazytrain.train.resume import FOLDER
from lazytrain.units import format_bytes

log = logging.getLogger(__name__)


def checkpoint_bytes(settings: FineTune, num_parameters: int) -> int:
    """Return what one checkpoint takes at most: weights and optimizer state."""
    optimizer = settings.optimizer
    is_eight_bit = optimizer.type == "cpu_adamw_8bit"
    each = bytes_per_parameter(optimizer.master, is_eight_bit, gradient_bytes=0)
    return int(each * num_parameters)


def check_room(settings: FineTune, num_parameters: int) -> None:
    """Refuse a run whose weights would not fit; warn if checkpoints would not.

    A checkpoint without room is left out and costs no more than itself.

    Raises:
        InvalidInput: If ``out`` has not the room for the trained weights.
    """
    out, free = settings.out, disk_free_bytes(settings.out)
    weights = (
        weights_bytes(settings.executor.dtype, num_parameters) + BESIDE_WEIGHTS_BYTES
    )
    if free < weights:
        remedy = (
            f"has {format_bytes(free)} free and the trained weights, with what lies "
            f"beside them, take {format_bytes(weights)}: free some space or name "
            "another folder"
        )
        raise InvalidInput("out", str(out), remedy)
    if not settings.save_every:
        return
    # The newest is written before the oldest goes.
    at_once = settings.keep_checkpoints + 1
    missing = max(0, at_once - len(checkpoint.folders(out / FOLDER)))
    needed = weights + missing * checkpoint_bytes(settings, num_parameters)
    if free < needed:
        log.warning(
            "%s has %s free; the weights and %d checkpoints take up to %s: those "
            "without room are left out",
            out,
            format_bytes(free),
            at_once,
            format_bytes(needed),
        )
