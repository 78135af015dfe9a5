import logging
import os
import subprocess
import sys
import threading
import time

import optim_cases as cases
import pytest
import torch

from lazytrain.errors import InvalidInput
from lazytrain.optim import build, native
from lazytrain.optim.adamw import HostAdamW


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache and no library loaded yet."""
    monkeypatch.setenv("LAZYTRAIN_CACHE", str(tmp_path))
    native.library.cache_clear()
    yield tmp_path
    native.library.cache_clear()


def test_without_a_compiler_the_reference_runs_and_says_so(fresh, monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.WARNING):
        optimizer = HostAdamW(cases.OptimizerSettings(), torch.float32)
    assert optimizer.kernel == "reference"
    assert "no-such-compiler" in caplog.text
    assert not any(fresh.iterdir())


def test_a_failing_compiler_leaves_nothing_half_built(fresh, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(build.BuildFailed, match="failed"):
        build.ensure()
    assert not any(fresh.iterdir())


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("LAZYTRAIN_CACHE", str(blocked))
    with pytest.raises(build.BuildFailed, match="cannot write"):
        build.ensure()


def test_other_flags_make_another_library():
    assert build.digest("g++", ()) != build.digest("g++", ("-g",))


def test_the_cached_library_is_used_again():
    first = build.ensure()
    stamp = first.stat().st_mtime_ns
    assert build.ensure() == first
    assert first.stat().st_mtime_ns == stamp


def test_the_kernel_that_runs_is_named():
    optimizer = HostAdamW(cases.OptimizerSettings(), torch.bfloat16)
    assert optimizer.kernel == cases.native_isas()[-1]
    for name in cases.kernels():
        made = HostAdamW(cases.OptimizerSettings(), torch.bfloat16, kernel=name)
        assert made.kernel == name


@pytest.mark.parametrize("kernel", ["sse9", "deepspeed"])
def test_a_kernel_that_cannot_run_is_refused(kernel):
    with pytest.raises(InvalidInput):
        HostAdamW(cases.OptimizerSettings(), torch.bfloat16, kernel=kernel)


def test_other_python_threads_run_during_an_update():
    """The interpreter lock is released: a counter goes on while the kernel works."""
    optimizer, state = cases.make("scalar", torch.bfloat16, True, sizes=(400_000, 64))
    flat = cases.gradient(state, seed=1).bfloat16()
    done, counted = threading.Event(), []

    def count():
        while not done.is_set():
            counted.append(1)
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        # A busy machine may not run the counter during one update: several are tried.
        # While the lock is held it cannot go on by more than a turn or two, ever.
        most = 0
        for step in range(1, 201):
            before = len(counted)
            optimizer.update(state, flat, step=step, learning_rate=1e-3, scale=1.0)
            most = max(most, len(counted) - before)
            if most > 10:
                break
    finally:
        done.set()
        thread.join()
    assert most > 10


def test_pinning_limits_the_threads():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from lazytrain.optim.native import default_threads; print(default_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


def test_a_forked_child_can_update():
    optimizer, state = cases.make("auto", torch.bfloat16, True, sizes=(300_000, 64))
    settings = optimizer.settings.model_copy(update={"threads": 2})
    optimizer.settings = settings
    flat = cases.gradient(state, seed=1).bfloat16()
    optimizer.update(state, flat, step=1, learning_rate=1e-3, scale=1.0)
    child = os.fork()
    if child == 0:
        optimizer.update(state, flat, step=2, learning_rate=1e-3, scale=1.0)
        os._exit(0)
    deadline = time.monotonic() + 60
    while (status := os.waitpid(child, os.WNOHANG))[0] == 0:
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
    assert status[1] == 0
