# Run sheet, validation, wildcard constraints and code fingerprints; no rule.
import json
import os
import sys
from pathlib import Path

from pydantic import ValidationError
from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

from lazytrain import systems
from lazytrain.config import PipelineConfig, RunRow, find_run
from lazytrain.errors import LazyTrainError
from lazytrain.fingerprint import fingerprint
from lazytrain.profile import accelerator as machine
from lazytrain.records import RunRecord, write, write_text
from lazytrain.report.recorded import read_runs, unlisted
from lazytrain.schedule.execution import micro_batch
from lazytrain.train.availability import load_sheet, missing_input, why_not

# Larger than any node: Snakemake scales it down to --cores, so a measured job is alone.
WHOLE_NODE = 4096

# What the commands read: config.yaml, other config files and --config, merged. It is no
# input of a rule: each rule names the keys that it uses among its params.
EFFECTIVE_CONFIG = "results/config.json"

# How often a table was made again because one of its records had been deleted.
REMADE = Path("results/remade.json")


def load_settings() -> PipelineConfig:
    """Validate the config against its schema and its types; name what is wrong."""
    try:
        settings = PipelineConfig.model_validate(config)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise WorkflowError(
            f"config key {key!r} = {first['input']!r}: {first['msg']};"
            " config/README.md lists every key"
        ) from None
    missing = missing_input(settings)
    if missing is not None:
        raise WorkflowError(missing)
    # Defaults are filled in and texts of the command line become numbers, so that a
    # rule's params hold what really applies.
    config.update(settings.model_dump(mode="json"))
    validate(config, "../schemas/config.schema.json")
    return settings


def load_rows() -> list[RunRow]:
    """Read and validate the run sheet."""
    try:
        return load_sheet(SETTINGS)
    except LazyTrainError as error:
        raise WorkflowError(str(error)) from None


def choose_accelerator() -> str:
    """Return the sheet id: the config's own, or what `auto` finds on this machine."""
    chosen = SETTINGS.accelerator
    if chosen == "auto":
        chosen = machine.resolve_accelerator("auto")
    known = sorted({row.accelerator for row in SHEET})
    if chosen not in known:
        raise WorkflowError(
            f"accelerator = {chosen!r}: {SETTINGS.runs} has rows for"
            f" {', '.join(known)} only; choose one with --config accelerator=ID"
        )
    return chosen


def read_recorded() -> dict[Path, RunRecord]:
    """Read every recorded run; stop at one that would mislead a table."""
    found = sorted(Path("results", SETTINGS.records).glob("**/record.json"))
    try:
        return dict(zip(found, read_runs(found), strict=True))
    except (LazyTrainError, OSError) as error:
        raise WorkflowError(
            f"a recorded run cannot be used: {error}; remove that record, or run its"
            " row again"
        ) from None


def recorded_files(name: str, purpose: str = "") -> list[str]:
    """Return the recorded files of one name, and of one purpose of run if given."""
    files = sorted(Path("results", SETTINGS.records).glob(f"**/{name}"))
    if purpose:
        files = [path for path in files if RECORDED[path].purpose == purpose]
    return [path.as_posix() for path in files]


def shown_accelerators() -> list[str]:
    """Return the sheet ids that the tables show.

    Of recorded runs these are the ids of every machine that has one, so that what was
    not run under a cap stands beside what was.
    """
    if IS_MEASURED or SETTINGS.accelerator != "auto":
        return [ACCELERATOR]
    machines = {machine.base_of(run.accelerator) for run in RECORDED.values()}
    ids = {row.accelerator for row in SHEET}
    shown = sorted(name for name in ids if machine.base_of(name) in machines)
    if not shown:
        raise WorkflowError(
            f"runs = {SETTINGS.runs!r}: no row of a recorded machine"
            f" ({', '.join(sorted(machines))}); choose the sheet of the recorded runs"
        )
    return shown


def require_records() -> None:
    """Stop where no run is recorded, and say where some are."""
    if IS_MEASURED or RECORDED:
        return
    places = Path("results", "recorded").glob("*/**/record.json")
    known = sorted({"/".join(path.parts[1:3]) for path in places})
    raise WorkflowError(
        f"records = {SETTINGS.records!r}: no record.json below"
        f" results/{SETTINGS.records}; choose runs, which measures here,"
        f" or one of {', '.join(known) or 'none recorded'}"
    )


def run_files(*flags: str, scale: str = "") -> list[str]:
    """Return the records of the runs that a table's column of the sheet marks."""
    if not IS_MEASURED:
        return recorded_files("record.json", "throughput")
    return [
        f"results/runs/{row.accelerator}/{row.scale}/{row.system}/record.json"
        for row in SHEET
        if row.accelerator == ACCELERATOR
        and scale in ("", row.scale)
        and any(getattr(row, flag) for flag in flags)
    ]


def described(name: str) -> list[str]:
    """Return the recorded profiles of one name: what predictions are scaled from.

    Profiles that are measured in this very workflow belong to its own runs; a
    prediction is for what nobody has run.
    """
    folder = Path("results", "recorded" if IS_MEASURED else SETTINGS.records)
    found = sorted(folder.glob(f"**/{name}"))
    return [path.as_posix() for path in found if "cpu" not in path.parts]


def profile_options(wildcards, input) -> str:
    """Return the profiles as options of a command."""
    options = [f"--hardware {path}" for path in input.hardware]
    return " ".join(options + [f"--layers {path}" for path in input.layers])


def published_machines() -> list[str]:
    """Return the files about machines that were not measured."""
    return sorted(path.as_posix() for path in Path("config/hardware").glob("*.json"))


def scale_files(wildcards) -> list[str]:
    """Return Table 3's records at one scale."""
    return run_files("table3", scale=wildcards.scale)


def evaluation_files() -> list[str]:
    """Return the evaluations behind Table 4."""
    if not IS_MEASURED:
        return recorded_files("eval.json")
    return [
        f"results/quality/{row.accelerator}/{row.scale}/{row.system}/eval.json"
        for row in SHEET
        if row.accelerator == ACCELERATOR and row.table4
    ]


def course_files() -> list[str]:
    """Return the records of the trainings behind Figure 6."""
    if not IS_MEASURED:
        return recorded_files("record.json", "quality")
    return [str(Path(name).with_name("record.json")) for name in evaluation_files()]


def evaluation_options() -> str:
    """Return the evaluations as options of a command."""
    return " ".join(f"--evaluation {name}" for name in evaluation_files())


def makings() -> dict[str, list[str]]:
    """Return each finished file that rests on records, and those records."""
    runs, evaluations = run_files("table3", "table5"), evaluation_files()
    found = {
        "results/table2.csv": profile_files(),
        "results/table3.csv": run_files("table3"),
        "results/table4.csv": evaluations,
        "results/table5.csv": run_files("table5"),
        "results/compare.csv": runs + evaluations,
    }
    for scale in {row.scale for row in SHEET}:
        found[f"results/table3/{scale}.csv"] = run_files("table3", scale=scale)
    for name in evaluations:
        found[name] = [str(Path(name).with_name("record.json"))]
    return found


def count_remakings() -> dict[str, int]:
    """Return how often each file was made again because a record had been deleted.

    Snakemake does not miss a deleted file while what was made from it is still there.
    The count is a param of the rules that read records, so that a deleted record makes
    its table again, and so its own run, and no other.
    """
    counts = json.loads(REMADE.read_text()) if REMADE.exists() else {}
    for made, records in makings().items():
        if os.path.exists(made) and not all(map(os.path.exists, records)):
            counts[made] = counts.get(made, 0) + 1
    return counts


def remakings(pattern: str):
    """Return a param: the count of one file, whose path may hold wildcards."""
    return lambda wildcards: COUNTS.get(pattern.format(**dict(wildcards.items())), 0)


def keep_state() -> None:
    """Write the effective config and the counts, before the first job."""
    write(SETTINGS, Path(EFFECTIVE_CONFIG))
    write_text(json.dumps(COUNTS, indent=1, sort_keys=True) + "\n", REMADE)


def profile_files() -> list[str]:
    """Return the hardware profiles behind Table 2."""
    if not IS_MEASURED:
        return recorded_files("hardware.json")
    return [f"results/profile/{ACCELERATOR}/hardware.json"]


def systems_here() -> list[str]:
    """Return the systems that the chosen sheet id has rows of."""
    return sorted({row.system for row in SHEET if row.accelerator == ACCELERATOR})


def missing_systems() -> list[str]:
    """Say which systems cannot run here, why, and what helps."""
    reasons = {name: why_not(name, ACCELERATOR) for name in systems_here()}
    return [f"{name}: not_run, {why}" for name, why in reasons.items() if why]


def unshown_runs() -> list[str]:
    """Say which recorded runs no table shows, because the sheet has no row for them."""
    names = unlisted(RECORDED.values(), SHEET)
    if not names:
        return []
    first = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    where = f"{len(names)} without a row in {SETTINGS.runs}"
    return [f"records: {where}, so not in Tables 3 to 5: {first}"]


def announce() -> None:
    """Say once what was chosen and what cannot run, before any job starts."""
    if IS_MEASURED:
        lines = [machine.describe_choice(SETTINGS.accelerator, ACCELERATOR)]
        lines += missing_systems()
    else:
        lines = [
            f"records: {len(RECORDED)} recorded runs of results/{SETTINGS.records}"
        ]
        lines += unshown_runs()
    if workflow.is_main_process:
        print(*lines, sep="\n", file=sys.stderr)


def require_machine() -> None:
    """Stop before the first job if the machine lacks what the sheet measures."""
    try:
        if IS_MEASURED:
            machine.resolve_accelerator(ACCELERATOR)
    except LazyTrainError as error:
        raise WorkflowError(str(error)) from None


def row_of(wildcards) -> str:
    """Return the sheet's row of a run: a changed row re-runs that run."""
    row = find_run(SHEET, wildcards.accelerator, wildcards.scale, wildcards.system)
    return row.model_dump_json(include={"model", "stands_for", "batch", "seq_len"})


def plan_of(wildcards) -> list[str]:
    """Return the solved plan of a run, or nothing for a system without one."""
    if not systems.is_planned(wildcards.system):
        return []
    return ["schedules/solved/{accelerator}/{scale}/{system}.json"]


def instance_of(wildcards) -> list[str]:
    """Return the problem behind a run's plan: the run is held against it."""
    if not systems.is_planned(wildcards.system):
        return []
    return ["results/instances/{accelerator}/{scale}/{system}.json"]


def check_of(wildcards) -> list[str]:
    """Return the independent check of a run's plan: no run starts on a plan it refutes."""
    if not systems.is_planned(wildcards.system):
        return []
    return ["results/checks/{accelerator}/{scale}/{system}.json"]


def plan_option(wildcards, input) -> str:
    """Return plan and instance as options, or nothing for a system without them."""
    return f"--plan {input.plan} --instance {input.instance}" if input.plan else ""


def test_rows() -> int:
    """Return how many test rows are answered; 0 is all of them."""
    return SETTINGS.accelerators[ACCELERATOR].quality.test_rows


def settings_of(*names: str) -> str:
    """Return config keys as text: a change of one re-runs the rules that use it."""
    chosen = {name: config[name] for name in names}
    return json.dumps(chosen, sort_keys=True)


def accelerator_settings(*names: str):
    """Return a param: parts of the settings of a rule's own sheet id, and no other's."""

    def chosen(wildcards) -> str:
        settings = config["accelerators"][wildcards.accelerator]
        return json.dumps({name: settings[name] for name in names}, sort_keys=True)

    return chosen


def planned_settings() -> str:
    """Return what a prediction uses of every sheet id's settings."""
    used = ("executor", "budgets")
    chosen = {
        name: {part: settings[part] for part in used}
        for name, settings in config["accelerators"].items()
    }
    return json.dumps(chosen, sort_keys=True)


def machine_settings(wildcards) -> str:
    """Return what the profile of a machine is measured with."""
    settings = SETTINGS.accelerators[wildcards.accelerator]
    names = ("master", "eight_bit_fraction", "threads")
    used = {name: getattr(SETTINGS.optimizer, name) for name in names}
    used |= {"dtype": settings.executor.dtype, "gpu_cap": settings.budgets.gpu_cap}
    return json.dumps(used, sort_keys=True)


def bench_of(wildcards) -> str:
    """Return what the layers of a scale are measured with."""
    place = (wildcards.accelerator, wildcards.scale)
    rows = [row for row in SHEET if (row.accelerator, row.scale) == place]
    executor = SETTINGS.accelerators[wildcards.accelerator].executor
    batch = max(row.batch for row in rows)
    tokens = micro_batch(batch, rows[0].seq_len, executor.micro_batch_tokens)
    names = ("dtype", "body", "loss_chunk_tokens")
    used = {name: getattr(executor, name) for name in names}
    used |= {"model": rows[0].model, "seq_len": rows[0].seq_len, "micro_batch": tokens}
    return json.dumps(used, sort_keys=True)


SETTINGS = load_settings()
SHEET = load_rows()
IS_MEASURED = SETTINGS.records == "runs"
RECORDED = {} if IS_MEASURED else read_recorded()
require_records()
ACCELERATOR = choose_accelerator()
COUNTS = count_remakings()
ACCELERATORS = ",".join(shown_accelerators())

announce()


wildcard_constraints:
    accelerator="|".join(sorted({row.accelerator for row in SHEET})),
    scale="|".join(sorted({row.scale for row in SHEET})),
    system="|".join(sorted({row.system for row in SHEET})),
