"""What a run may not change when it goes on from a checkpoint: which rows come when.

Another plan, micro-batch or home of the state computes the same course elsewhere.
Another batch, length or template is another course, and rows held back for a later
batch would be lost or seen twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, Final

from lazytrain.data.prompts import TEMPLATES
from lazytrain.errors import InvalidInput
from lazytrain.executor.optimizer import format_name, plan_fraction
from lazytrain.optim.partition import fraction_of
from lazytrain.profile.hardware import settings_for
from lazytrain.records import SplitManifest, read, sha256_text
from lazytrain.schedule.plan import Plan
from lazytrain.train.build import PLANNED, optimizer_for
from lazytrain.train.checkpoint import Checkpoint, Course
from lazytrain.train.request import RunRequest

log = logging.getLogger(__name__)
_REMEDY: Final = (
    "rows would come in another order than the checkpoint's; set back what was saved, "
    "or start anew: another out, or resume: never once the old checkpoints are removed"
)
# Written by a library, not said by the model.
_NOTES: Final = (
    *("_name_or_path", "architectures", "dtype", "torch_dtype"),
    *("transformers_version", "use_cache"),
)
_CONFIG: Final = "config.json"


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
    # Rows are rendered with the plain template where a tokenizer has none.
    text = tokenizer.chat_template or TEMPLATES["plain"]
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


def check_model(config: Any, point: Checkpoint) -> None:
    """Refuse to go on with a model that computes otherwise than the saved one.

    Weights of the same shapes fit another rotary base or window as well, and would
    train on as another model.

    Args:
        config: Hugging Face configuration of the run's model.
        point: The checkpoint.

    Raises:
        InvalidInput: Naming each setting that differs, with both values.
    """
    path = point.model_folder / _CONFIG
    if not path.is_file():
        return
    now = json.loads(config.to_json_string())
    saved = json.loads(path.read_text(encoding="utf-8"))
    names = now.keys() | saved.keys()
    if now.get("transformers_version") != saved.get("transformers_version"):
        names = now.keys() & saved.keys()  # a version may write more than another
    wrong = sorted(n for n in names - {*_NOTES} if now.get(n) != saved.get(n))
    if wrong:
        values = "; ".join(f"{now.get(n)}, saved {saved.get(n)}" for n in wrong)
        remedy = "is another model than the checkpoint's; set it back, or another out"
        raise InvalidInput(f"model: {', '.join(wrong)}", values, remedy)


def check_form(request: RunRequest, point: Checkpoint) -> None:
    """Refuse a form of weights or state that the saved one cannot be read into.

    What is built says it too, but only once the machine was measured and planned.

    Raises:
        InvalidInput: Naming the setting, with both values.
    """
    saved = point.state
    dtype = settings_for(request.config, request.row.accelerator).executor.dtype
    if dtype != saved.dtype:
        remedy = "resume with the dtype that saved it, or start in another out"
        value = f"{dtype}, saved {saved.dtype}"
        raise InvalidInput("executor.dtype", value, remedy)
    state = _state_of(request)
    if state is not None and state != saved.optimizer_state:
        remedy = "resume with the type and fraction of then, or start in another out"
        value = f"{state}, saved {saved.optimizer_state}"
        raise InvalidInput("optimizer_state", value, remedy)


def _state_of(request: RunRequest) -> str | None:
    """Return the form of optimizer state that a run will have; None: not known yet."""
    system = request.row.system
    if system not in PLANNED:
        return None
    optimizer = optimizer_for(system, request.config.optimizer)
    if request.plan is None:
        return format_name(fraction_of(optimizer))
    return format_name(plan_fraction(read(Plan, request.plan), optimizer))


def changed_settings(saved: str | None, request: RunRequest) -> list[str]:
    """Return what a request asks otherwise than a saved one, with both values.

    Args:
        saved: The request of the run that saved the checkpoint, as JSON; None: not
            there, so nothing is known to differ.
        request: The request of now.
    """
    if saved is None:
        return []
    was = _asked(json.loads(saved), request)
    now = _asked(request.model_dump(mode="json"), request)
    return [
        f"{name} = {now.get(name)}, saved {was.get(name)}"
        for name in dict.fromkeys((*now, *was))
        if now.get(name) != was.get(name)
    ]


def _asked(document: dict[str, Any], request: RunRequest) -> dict[str, Any]:
    """Return a request's settings by the names that users give them."""
    rest = dict(document["config"])
    settings = rest.pop("accelerators").get(request.row.accelerator, {})
    purposes = {name: settings.pop(name, {}) for name in ("throughput", "quality")}
    asked = document["row"] | rest | settings | purposes[request.purpose]
    return dict(_flat(asked))


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested objects with dotted names."""
    if not isinstance(value, dict):
        yield prefix, value
        return
    for name, inner in value.items():
        yield from _flat(inner, f"{prefix}.{name}" if prefix else name)
