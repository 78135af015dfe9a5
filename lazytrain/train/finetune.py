"""``lazytrain train CONFIG.yaml``: a fine-tuning outside the run sheet.

One typed file says model, data and schedule. The machine and the model's layers are
measured, a plan is solved for them (or a given one is taken), and the same loop and
executor run it as run the paper's rows.
"""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from lazytrain.data.divide import divide
from lazytrain.data.prompts import with_template
from lazytrain.data.registry import load_mixture
from lazytrain.data.rows import read_rows, write_rows
from lazytrain.data.split import SplitSettings, side_rows
from lazytrain.models.decoder import Decoder
from lazytrain.profile.accelerator import resolve_accelerator
from lazytrain.profile.hardware import device_for, gpu_cap_bytes
from lazytrain.records import RunRecord, SplitManifest, read, write, write_text
from lazytrain.train.checkpoint import Checkpoint
from lazytrain.train.finetune_settings import SCALE, FineTune, said
from lazytrain.train.given_plan import check_given
from lazytrain.train.lock import hold_accelerator, hold_out
from lazytrain.train.planning import make_plan, without_borders
from lazytrain.train.request import RunRequest, training_batches
from lazytrain.train.resume import AUTO, begin, reusable_plan
from lazytrain.train.room import check_room
from lazytrain.train.run import guarded, leave, train_source
from lazytrain.train.source import RANDOM, Source, load_source

log = logging.getLogger(__name__)
ROWS: Final = "rows.jsonl"
SPLIT: Final = "split.json"
PREPARED: Final = ".prepared."

__all__ = ["SCALE", "FineTune", "fine_tune", "prepare_data"]


def prepare_data(settings: FineTune, folder: Path, tokenizer: Any) -> tuple[Path, Path]:
    """Load, mix, number and split the rows; return the paths of rows and manifest.

    Args:
        settings: Which data, and how it is divided.
        folder: Where both are written.
        tokenizer: Holds the chat template that has to render the rows' tools.

    Raises:
        InvalidInput: If data cannot be read or divided.
    """
    loaded = load_mixture(settings.mixture(settings.data), tokenizer)
    test = None
    if settings.test_data:
        test = load_mixture(settings.mixture(settings.test_data), tokenizer)
    numbered, manifest = divide(
        loaded,
        SplitSettings(settings.split_mode, settings.seed, settings.train_fraction),
        source=said(settings.data),
        test=test,
        test_source=said(settings.test_data),
    )
    _tell_data(manifest)
    rows, split = folder / ROWS, folder / SPLIT
    write_rows(numbered, rows)
    write(manifest, split)
    return rows, split


def _tell_data(manifest: SplitManifest) -> None:
    """Say which rows are left out, and whether test rows were seen in training."""
    if manifest.skipped:
        reasons = ", ".join(f"{why}: {n}" for why, n in manifest.skipped.items())
        log.warning("rows left out, of %d kept: %s", manifest.num_rows, reasons)
    if manifest.shared_questions:
        told = "%d of %d test rows share their question with a training row"
        log.warning(told, manifest.shared_questions, len(manifest.test.row_ids))


def count_steps(request: RunRequest, tokenizer: Any, num_epochs: float) -> int:
    """Return how many whole batches the epochs fill, at least one.

    Rows are tokenised once: some may be dropped, and packed ones share a batch.
    """
    rows = side_rows(read_rows(request.rows), read(SplitManifest, request.split).train)
    epoch = training_batches(request, rows, tokenizer, epochs=1, keep_partial=True)
    filled = sum(batch.input_ids.shape[0] for batch in epoch) / request.row.batch
    return max(1, math.floor(num_epochs * filled + 1e-9))


def fine_tune(settings: FineTune, resume: str = AUTO) -> RunRecord:
    """Run a fine-tuning and write its record, steps, plan and weights below ``out``.

    Args:
        settings: What to train, on what, and how.
        resume: ``auto`` goes on from the newest whole checkpoint below ``out``, if
            there is one; ``never`` starts anew; or a checkpoint or a run's folder.

    Raises:
        InvalidInput: If model, data, budgets, plan or checkpoint cannot be used.
        DeviceBusy: If another run holds the GPU.
        OutBusy: If another run writes into the same folder.
    """
    with hold_out(settings.out):
        record = _fine_tune(settings, resume)
        leave(record, settings.out)
    return record


def _fine_tune(settings: FineTune, resume: str) -> RunRecord:
    """Prepare data and plan, and train."""
    accelerator = resolve_accelerator(settings.accelerator)
    name = settings.model if settings.weights == "random" else None
    weights = RANDOM if name is not None else settings.model
    source = load_source(weights, name)
    with_template(source.tokenizer, settings.template)
    _check_given(settings, accelerator, source)
    check_room(settings, Decoder(source.config).num_parameters)
    _tell(settings, source)
    with hold_accelerator(accelerator):
        request, point = _begun(settings, accelerator, source, resume)
        return guarded(request, lambda given: _planned_run(given, source, point))


def _tell(settings: FineTune, source: Source) -> None:
    """Say what a user may not expect of a run, before it takes hours."""
    longest = getattr(source.config, "max_position_embeddings", None)
    if longest is not None and settings.seq_len > longest:
        told = "seq_len = %d is over the model's max_position_embeddings = %d"
        log.warning(told, settings.seq_len, longest)
    if settings.save_every == 0:
        log.warning("save_every = 0: a run that is cut short begins anew")


def _begun(
    settings: FineTune, accelerator: str, source: Source, resume: str
) -> tuple[RunRequest, Checkpoint | None]:
    """Return the run's request, and the checkpoint that it goes on from.

    Rows and manifest take the place of an earlier run's only once it is known that the
    run goes on with them: a run that is refused changes nothing.
    """
    for left in settings.out.glob(f"{PREPARED}*"):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=settings.out, prefix=PREPARED) as folder:
        rows, split = prepare_data(settings, Path(folder), source.tokenizer)
        request = _request(settings, accelerator, rows, split, resume)
        if settings.num_epochs is not None:
            steps = count_steps(request, source.tokenizer, settings.num_epochs)
            settings = settings.model_copy(update={"num_steps": steps})
            request = _request(settings, accelerator, rows, split, resume)
        point = begin(request, source)
        places = {"rows": settings.out / ROWS, "split": settings.out / SPLIT}
        for name, place in places.items():
            getattr(request, name).replace(place)
    return request.model_copy(update=places), point


def _planned_run(
    request: RunRequest, source: Source, point: Checkpoint | None
) -> RunRecord:
    """Make the plan that is not given, and train along it."""
    if request.plan is None:
        plan = request.out / "plan.json"
        _write_plan(request, source, point, plan)
        request = request.model_copy(update={"plan": plan})
    return train_source(request, source, point)


def _check_given(settings: FineTune, accelerator: str, source: Source) -> None:
    """Refuse a plan of the file's that is not for what the file asks."""
    if settings.plan is None:
        return
    row, config = settings.row(accelerator), settings.pipeline(accelerator)
    if settings.pack:
        cap = gpu_cap_bytes(config, accelerator, device_for(accelerator))
        config = without_borders(config, row, source.config, cap)
    check_given(settings.plan, row, config)


def _request(
    settings: FineTune, accelerator: str, rows: Path, split: Path, resume: str
) -> RunRequest:
    return RunRequest(
        row=settings.row(accelerator),
        config=settings.pipeline(accelerator),
        purpose="quality",
        split=split,
        rows=rows,
        out=settings.out,
        plan=settings.plan,
        save_every=settings.save_every,
        keep_checkpoints=settings.keep_checkpoints,
        resume=resume,
        pack=settings.pack,
        group_by_length=settings.group_by_length,
    )


def _write_plan(
    request: RunRequest, source: Source, point: Checkpoint | None, path: Path
) -> None:
    """Write the plan of the checkpoint to go on from, or else a new one."""
    saved = reusable_plan(request, point)
    if saved is not None:
        write_text(saved, path)
    else:
        made = make_plan(
            request.row,
            request.config,
            source.config,
            request.out,
            pack=request.pack,
        )
        write(made, path)
