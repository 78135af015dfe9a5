"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer."""

import subprocess
from pathlib import Path

import pytest

from lazytrain.optim import build

DRIVER = Path(__file__).with_name("sanitizer_driver.cpp")
FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compile_driver(library: Path, target: Path) -> None:
    subprocess.run(
        [
            *("g++", "-std=c++17", *FLAGS, f"-I{build.SOURCES}", str(DRIVER)),
            *(str(library), f"-Wl,-rpath,{library.parent}", "-o", str(target)),
        ],
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sanitizers")
    compile_driver(build.ensure(FLAGS), folder / "driver")
    return folder / "driver"


def test_every_kernel_is_clean_at_every_edge_size(driver):
    done = subprocess.run([driver], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    assert done.stdout.startswith("ok")


def test_the_sanitizers_would_see_one_byte_too_many(driver, tmp_path):
    """Plant a fault: a slice one element longer than its buffers."""
    source = DRIVER.read_text().replace(
        "{0, n, 0, 0, 0.999f", "{0, n + 1, 0, 0, 0.999f"
    )
    planted = tmp_path / "planted.cpp"
    planted.write_text(source)
    library = build.ensure(FLAGS)
    subprocess.run(
        [
            *("g++", "-std=c++17", *FLAGS, f"-I{build.SOURCES}", str(planted)),
            *(str(library), f"-Wl,-rpath,{library.parent}", "-o", str(tmp_path / "p")),
        ],
        check=True,
        capture_output=True,
    )
    done = subprocess.run([tmp_path / "p"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr
