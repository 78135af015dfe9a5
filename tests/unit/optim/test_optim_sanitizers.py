"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer."""

import subprocess
from pathlib import Path

from lazytrain.optim import build

DRIVER = Path(__file__).with_name("sanitizer_driver.cpp")
FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compile_driver(source: Path, target: Path) -> Path:
    """Compile a driver with the sanitizers and link it to kernels built with them."""
    library = build.ensure(FLAGS)
    subprocess.run(
        [
            *("g++", "-std=c++17", *FLAGS, f"-I{build.SOURCES}", str(source)),
            *(str(library), f"-Wl,-rpath,{library.parent}", "-o", str(target)),
        ],
        check=True,
        capture_output=True,
    )
    return target


def run(program: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program], capture_output=True, text=True, check=False)


def test_every_kernel_is_clean_at_every_edge_size(tmp_path):
    done = run(compile_driver(DRIVER, tmp_path / "driver"))
    assert done.returncode == 0, done.stderr[:2000]
    assert done.stdout.startswith("ok")


def test_the_sanitizers_would_see_one_element_too_many(tmp_path):
    """Plant a fault: a slice one element longer than its buffers."""
    text = DRIVER.read_text()
    faulty = text.replace("{0, n, 0, 0, 0.999f", "{0, n + 1, 0, 0, 0.999f")
    assert faulty != text
    source = tmp_path / "faulty.cpp"
    source.write_text(faulty.replace("{0, 1, 63,", "{1, 63,"))
    done = run(compile_driver(source, tmp_path / "faulty"))
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr
