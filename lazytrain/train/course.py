"""What a run may not change when it goes on from a checkpoint: which rows come when.

Another plan, micro-batch or home of the state computes the same course elsewhere.
Another batch, length or template is another course, and rows held back for a later
batch would be lost or seen twice.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from lazytrain.data.prompts import TEMPLATES
from lazytrain.errors import InvalidInput
from lazytrain.records import SplitManifest, read, sha256_text
from lazytrain.train.checkpoint import Checkpoint, Course
from lazytrain.train.request import RunRequest

log = logging.getLogger(__name__)
_REMEDY: Final = (
    "rows would come in another order than the checkpoint's; set back what was saved, "
    "or start anew: another out, or resume: never once the old checkpoints are removed"
)


def course_of(request: RunRequest, tokenizer: Any) -> Course:
    """Return the settings of a run that decide what its batches hold."""
    return Course(
        purpose=request.purpose,
        batch=request.row.batch,
        seq_len=request.row.seq_len,
        pack=request.pack,
        group_by_length=request.group_by_length,
        allow_truncation=request.config.allow_truncation,
        template=_template_name(tokenizer),
    )


def _template_name(tokenizer: Any) -> str:
    """Return the name of a tokenizer's chat template, or the start of its hash."""
    text = tokenizer.chat_template
    for name, template in TEMPLATES.items():
        if text == template:
            return name
    return f"sha256:{sha256_text(str(text))[:16]}"


def check_course(request: RunRequest, tokenizer: Any, point: Checkpoint) -> None:
    """Refuse to go on from a checkpoint with another order of rows.

    Raises:
        InvalidInput: Naming each setting that differs, with both values.
    """
    state = point.state
    rows = read(SplitManifest, request.split).train.sha256
    now: dict[str, Any] = {"seed": request.config.seed, "data": f"rows {rows[:16]}"}
    saved: dict[str, Any] = {
        "seed": state.seed,
        "data": f"rows {state.rows_sha256[:16]}",
    }
    if state.course is None:
        log.warning("%s does not say its batch and length: not checked", point.folder)
    else:
        now |= course_of(request, tokenizer).model_dump()
        saved |= state.course.model_dump()
    changed = [name for name, value in now.items() if value != saved[name]]
    if changed:
        values = "; ".join(f"{now[name]}, saved {saved[name]}" for name in changed)
        raise InvalidInput(", ".join(changed), values, _REMEDY)
    if state.step > request.settings.num_steps:
        remedy = f"the checkpoint is at step {state.step} already"
        raise InvalidInput("num_steps", request.settings.num_steps, remedy)
