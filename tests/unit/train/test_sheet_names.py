"""Names in the run sheet are names that exist, asked before any job starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from lazytrain.config import PipelineConfig, load_yaml
from lazytrain.errors import InvalidInput
from lazytrain.train.availability import load_sheet

ROOT = Path(__file__).parents[3]
SHEETS = sorted((ROOT / "config").glob("runs*.tsv"))


@pytest.fixture
def settings():
    return load_yaml(PipelineConfig, ROOT / "config" / "config.yaml")


@pytest.mark.parametrize("path", SHEETS, ids=lambda path: path.stem)
def test_the_sheets_here_name_what_exists(settings, path):
    assert load_sheet(settings.model_copy(update={"runs": str(path)}))


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("\tlazytrain\t", "\tlazytrian\t", "system = 'lazytrian'"),
        ("\t3B-mini\t", "\t3B-minni\t", "model = '3B-minni'"),
        ("\tQwen2.5-3B\t8", "\tQwen2.5-33B\t8", "stands_for = 'Qwen2.5-33B'"),
        ("cpu\t", "cpuu\t", "accelerator = 'cpuu'"),
    ],
)
def test_a_misspelt_name_is_refused_with_its_row(settings, tmp_path, old, new, field):
    path = tmp_path / "runs.tsv"
    text = (ROOT / "config" / "runs.tsv").read_text()
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidInput, match=f"^{field}: choose one of") as caught:
        load_sheet(settings.model_copy(update={"runs": str(path)}))
    assert f"3B/{'lazytrian' if 'trian' in new else 'lazytrain'} of" in str(
        caught.value
    )


def test_the_names_cost_no_large_import():
    code = (
        "import sys, lazytrain.train.availability; print('transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
