"""JSON schemas of the configuration, made from its types.

Snakemake, editors and the workflow catalog read the files; a test compares them with
what :func:`schemas` returns. ``python -m lazytrain.schemas`` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from lazytrain.config import PipelineConfig, RunRow
from lazytrain.records import write_text

FOLDER = Path("workflow/schemas")
DRAFT = "https://json-schema.org/draft/2020-12/schema"
KINDS: dict[str, type[BaseModel]] = {
    "config.schema.json": PipelineConfig,
    "runs.schema.json": RunRow,
}


def schemas() -> dict[str, str]:
    """Return the text of each schema file by its name."""
    return {
        name: json.dumps({"$schema": DRAFT, **kind.model_json_schema()}, indent=2)
        + "\n"
        for name, kind in KINDS.items()
    }


def write_schemas(folder: Path = FOLDER) -> None:
    """Write every schema file."""
    for name, text in schemas().items():
        write_text(text, folder / name)


if __name__ == "__main__":
    write_schemas()
