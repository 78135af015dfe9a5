"""A run with boundaries and state on disk, killed and resumed, gives the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_checkpoint_kill import check, drive, make_request

from lazytrain.records import read, write
from lazytrain.schedule.plan import Plan


def on_disk(folder: Path) -> None:
    """Write a request whose plan has boundaries and all state on NVMe."""
    request = make_request(folder, "NCRGCNG")
    plan = read(Plan, folder / "plan.json")
    size = 2 * 48 * 2**10
    boundaries = [b.model_copy(update={"size_bytes": size}) for b in plan.boundaries]
    parts = [
        part.model_copy(
            update={
                "optimizer_state": part.optimizer_state.model_copy(
                    update={"home": "nvme"}
                )
            }
        )
        for part in plan.parts
    ]
    update = {"boundaries": tuple(boundaries), "parts": tuple(parts)}
    write(plan.model_copy(update=update), folder / "plan.json")
    config = request.config.model_copy(update={"scratch": str(folder / "scratch")})
    write(request.model_copy(update={"config": config}), folder / "request.json")


@pytest.mark.parametrize(
    "shares", [(3, 7), pytest.param(range(1, 8), marks=pytest.mark.slow)]
)
def test_kill_points_with_state_on_disk(tmp_path, shares):
    on_disk(tmp_path)
    drive(tmp_path, ["count"])
    count = int((tmp_path / "runs" / "count" / "operations").read_text())
    points = [str(count * share // 8) for share in shares]
    drive(tmp_path, points)
    check(tmp_path, points)
