# The measured NVMe case: this machine's times and rates, with memory for a few boundaries
# only. Table 7 and Figure 4 as the paper has them, for a machine that was measured.

# Preferred, if its layers were measured.
NVME_SCALE = "7B"


def nvme_cases() -> dict[str, Path]:
    """Return the layer profile behind the case of each accelerator shown.

    Profiles lie in `{accelerator}/{scale}/layers.json`, wherever that folder is.
    """
    known = {
        (row.accelerator, row.scale): Path("results/profile")
        for row in SHEET
        if row.system == "lazytrain"
    }
    found = [
        folder.joinpath(*pair, "layers.json")
        for pair, folder in known.items()
        if pair[0] == ACCELERATOR
    ]
    if not IS_MEASURED:
        paths = map(Path, recorded_files("layers.json"))
        found = [path for path in paths if path.parts[-3:-1] in known]
    # The preferred scale comes last and stays.
    found.sort(key=lambda path: (path.parts[-2] == NVME_SCALE, path))
    return {path.parts[-3]: path for path in found}


def nvme_layers(wildcards) -> str:
    """Return the layer profile of a case."""
    return nvme_cases()[wildcards.accelerator].as_posix()


def nvme_hardware(wildcards) -> str:
    """Return the hardware profile of a case."""
    return (nvme_cases()[wildcards.accelerator].parents[1] / "hardware.json").as_posix()


def nvme_outputs() -> list[str]:
    """Return the table and the figure of every case."""
    names = ("results/table7_{}.csv", "results/figures/figure4_{}.svg")
    return [name.format(case) for case in sorted(nvme_cases()) for name in names]


localrules:
    nvme_table,
    nvme_figure,


rule nvme_instance:
    input:
        hardware=nvme_hardware,
        layers=nvme_layers,
    output:
        instance=ensure("results/nvme/{accelerator}/measured.json", non_empty=True),
    log:
        "logs/nvme/{accelerator}/instance.log",
    conda:
        "../../envs/solve.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime="5m",
    params:
        config=EFFECTIVE_CONFIG,
        code=fingerprint(*DERIVING, "systems"),
        settings=settings_of("accelerators", "optimizer"),
        scale=lambda wildcards: nvme_cases()[wildcards.accelerator].parts[-2],
    shell:
        "lazytrain instance --config {params.config} --hardware {input.hardware}"
        " --layers {input.layers} --accelerator {wildcards.accelerator}"
        " --scale {params.scale} --system lazytrain"
        " --out {output.instance} 2> {log}"


rule nvme_tighten:
    input:
        instance="results/nvme/{accelerator}/measured.json",
    output:
        instance=ensure("results/nvme/{accelerator}/{disk}.json", non_empty=True),
    log:
        "logs/nvme/{accelerator}/{disk}.instance.log",
    wildcard_constraints:
        disk="with-disk|without-disk",
    conda:
        "../../envs/solve.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime="5m",
    params:
        code=fingerprint("schedule.tight"),
        limit=lambda wildcards: (
            "--nvme-boundaries 0" if wildcards.disk == "without-disk" else ""
        ),
    shell:
        "lazytrain tighten {input.instance} {params.limit}"
        " --out {output.instance} 2> {log}"


rule nvme_solve:
    input:
        instance="results/nvme/{accelerator}/{disk}.json",
    output:
        plan=ensure("results/nvme/{accelerator}/{disk}.plan.json", non_empty=True),
        check=ensure("results/nvme/{accelerator}/{disk}.check.json", non_empty=True),
    log:
        "logs/nvme/{accelerator}/{disk}.solve.log",
    wildcard_constraints:
        disk="with-disk|without-disk",
    conda:
        "../../envs/solve.yaml"
    threads: 1
    resources:
        mem_mb=8000,
        runtime="30m",
    params:
        code=fingerprint("schedule"),
        seconds=lookup("solver/time_limit_s", within=config),
        gap=lookup("solver/gap", within=config),
        seed=lookup("solver/seed", within=config),
    shell:
        "(lazytrain solve {input.instance} --out {output.plan}"
        " --time-limit-s {params.seconds} --gap {params.gap} --seed {params.seed}"
        " && lazytrain check {output.plan} {input.instance} --out {output.check})"
        " 2> {log}"


rule nvme_table:
    input:
        instance="results/nvme/{accelerator}/with-disk.json",
        plan="results/nvme/{accelerator}/with-disk.plan.json",
    output:
        table=report(
            ensure("results/table7_{accelerator}.csv", non_empty=True),
            caption="../report/table7_measured.rst",
            category="Schedules",
        ),
    log:
        "logs/nvme/{accelerator}/table.log",
    conda:
        "../../envs/solve.yaml"
    params:
        code=fingerprint("schedule.tight"),
    shell:
        "lazytrain windows {input.plan} {input.instance} --out {output.table} 2> {log}"


rule nvme_figure:
    input:
        plans=[
            "results/nvme/{accelerator}/without-disk.plan.json",
            "results/nvme/{accelerator}/with-disk.plan.json",
        ],
    output:
        figure=report(
            ensure("results/figures/figure4_{accelerator}.svg", non_empty=True),
            caption="../report/figure4_measured.rst",
            category="Schedules",
        ),
    log:
        "logs/nvme/{accelerator}/figure.log",
    conda:
        "../../envs/solve.yaml"
    params:
        code=fingerprint("schedule.render"),
    shell:
        "lazytrain render {input.plans} --out {output.figure} 2> {log}"
