"""Snakemake in a folder of its own, and a stand-in for the stages' command.

The tests here ask which jobs Snakemake would run, so the stages themselves are replaced
by a shell script that writes what it is told to write. `make smoke` runs the real ones.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAND_IN = """#!/bin/sh
# Writes every file that a rule names as an output of the command.
previous=
for word in "$@"; do
    case "$previous" in
        --out)
            case "$1" in run) file=$word/record.json ;; *) file=$word ;; esac
            mkdir -p "$(dirname "$file")"; echo '{}' > "$file" ;;
        --table) echo '{}' > "$word" ;;
        --rows) [ "$1" = data ] && echo '{}' > "$word" ;;
        --out-dir)
            for name in table1.csv table7.csv published.csv figures/figure4.svg \
                figures/figure8.svg; do
                mkdir -p "$(dirname "$word/$name")"; echo '{}' > "$word/$name"
            done ;;
    esac
    previous=$word
done
"""


class Workspace:
    """A working folder with links to the configuration, and a copy of the package."""

    def __init__(self, folder):
        self.folder = folder / "work"
        self.package = folder / "code" / "lazytrain"
        self.folder.mkdir()
        for name in ("config", "profiles"):
            (self.folder / name).symlink_to(ROOT / name)
        shutil.copytree(
            ROOT / "lazytrain",
            self.package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        command = folder / "bin" / "lazytrain"
        command.parent.mkdir()
        command.write_text(STAND_IN)
        command.chmod(0o755)
        tools = Path(sys.executable).parent
        self.environment = os.environ | {
            "PATH": f"{command.parent}:{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.package.parent),
            "CUDA_VISIBLE_DEVICES": "",
        }

    def snakemake(self, *words, door="Snakefile"):
        """Run Snakemake here and return the finished process, output in stdout."""
        command = ["snakemake", "--directory", str(self.folder), *map(str, words)]
        return subprocess.run(
            [*command, "-s", str(ROOT / door)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )

    def planned(self, *words, door="Snakefile"):
        """Return {rule: number of jobs} of a dry run."""
        done = self.snakemake("-n", *words, door=door)
        assert done.returncode == 0, done.stdout
        table = re.search(
            r"^job +count\n-+ +-+\n(.*?)\ntotal", done.stdout, re.M | re.S
        )
        if table is None:
            assert "Nothing to be done" in done.stdout, done.stdout
            return {}
        pairs = (line.split() for line in table[1].splitlines())
        return {name: int(count) for name, count in pairs}


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A workspace in which the smoke workflow has run to its end."""
    space = Workspace(tmp_path_factory.mktemp("finished"))
    done = space.snakemake("--cores", "2", "--configfile", "config/smoke.yaml")
    assert done.returncode == 0, done.stdout
    return space
