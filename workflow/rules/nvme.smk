# The measured NVMe case: this machine's times and rates, with memory for a few boundaries
# only. Table 7 and Figure 4 as the paper has them, for a machine that was measured.


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
        code=fingerprint("schedule", "systems"),
        settings=settings_of("optimizer", "solver"),
        machine=accelerator_settings("executor", "budgets"),
        scale=nvme_scale,
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
        limit=nvme_limit,
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
