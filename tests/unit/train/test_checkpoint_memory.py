"""Saving takes no memory beside the model; loading takes one shard."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

SCRIPT = """
    import resource, sys
    from pathlib import Path

    import torch

    from lazytrain.models.load import SafetensorsFiles
    from lazytrain.train.tensor_files import write_shards

    MIB = 1 << 20
    folder = Path(sys.argv[1])

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    flat = torch.ones(256 * MIB // 4)
    views = {f"t{n}": part for n, part in enumerate(flat.chunk(32))}
    write_shards(folder / "warm", "m", [("t", torch.ones(9))], MIB)
    before = peak()
    sums, where = write_shards(folder, "m", views.items(), 64 * MIB)
    saved = peak()
    weights = SafetensorsFiles(folder, where)
    flat.zero_()
    for name, view in views.items():
        view.copy_(weights[name])
    assert flat.min() == 1
    print((saved - before) // MIB, (peak() - before) // MIB)
"""


def test_saving_copies_nothing_and_loading_holds_one_shard(tmp_path):
    (tmp_path / "warm").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), tmp_path],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    saved_mib, loaded_mib = map(int, done.stdout.split())
    assert saved_mib < 24
    assert loaded_mib < 64 + 24
