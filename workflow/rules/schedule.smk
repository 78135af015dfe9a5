# Pose the planning problem, solve it, and replay the plan without the solver; the same
# for the cases that the paper prints.


rule derive_instance:
    input:
        hardware="results/profile/{accelerator}/hardware.json",
        layers="results/profile/{accelerator}/{scale}/layers.json",
    output:
        instance=ensure(
            "results/instances/{accelerator}/{scale}/{system}.json", non_empty=True
        ),
    log:
        "logs/instance/{accelerator}/{scale}/{system}.log",
    conda:
        "../../envs/solve.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime="30m",
    params:
        config=EFFECTIVE_CONFIG,
        code=fingerprint("schedule", "systems"),
        row=row_of,
        settings=settings_of("optimizer", "solver"),
        machine=accelerator_settings("executor", "budgets"),
    shell:
        "lazytrain instance --config {params.config} --hardware {input.hardware}"
        " --layers {input.layers} --accelerator {wildcards.accelerator}"
        " --scale {wildcards.scale} --system {wildcards.system}"
        " --allow-none --out {output.instance} 2> {log}"


rule solve:
    input:
        instance="results/instances/{accelerator}/{scale}/{system}.json",
    output:
        plan=ensure(
            "schedules/solved/{accelerator}/{scale}/{system}.json", non_empty=True
        ),
    log:
        "logs/solve/{accelerator}/{scale}/{system}.log",
    benchmark:
        "logs/benchmarks/solve/{accelerator}/{scale}/{system}.jsonl"
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
        "lazytrain solve {input.instance} --out {output.plan}"
        " --time-limit-s {params.seconds} --gap {params.gap} --seed {params.seed}"
        " --allow-none 2> {log}"


rule check:
    input:
        instance="results/instances/{accelerator}/{scale}/{system}.json",
        plan="schedules/solved/{accelerator}/{scale}/{system}.json",
    output:
        report=ensure(
            "results/checks/{accelerator}/{scale}/{system}.json", non_empty=True
        ),
    log:
        "logs/check/{accelerator}/{scale}/{system}.log",
    conda:
        "../../envs/solve.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime="5m",
    params:
        code=fingerprint(
            "schedule.check",
            "schedule.check_execution",
            "schedule.check_order",
            "schedule.check_transfers",
            "schedule.instance",
            "schedule.plan",
            "schedule.violations",
        ),
    shell:
        "lazytrain check {input.plan} {input.instance} --out {output.report} 2> {log}"


rule published:
    output:
        table1=report(
            ensure("results/table1.csv", non_empty=True),
            caption="../report/table1.rst",
            category="Schedules",
        ),
        table7=report(
            ensure("results/table7.csv", non_empty=True),
            caption="../report/table7.rst",
            category="Schedules",
        ),
        cases=report(
            ensure("results/published.csv", non_empty=True),
            caption="../report/published.rst",
            category="Schedules",
        ),
        figure4=report(
            ensure("results/figures/figure4.svg", non_empty=True),
            caption="../report/figure4.rst",
            category="Schedules",
        ),
        figure8=report(
            ensure("results/figures/figure8.svg", non_empty=True),
            caption="../report/figure8.rst",
            category="Schedules",
        ),
    log:
        "logs/published.log",
    benchmark:
        "logs/benchmarks/published.jsonl"
    conda:
        "../../envs/solve.yaml"
    threads: 1
    resources:
        mem_mb=8000,
        runtime="30m",
    params:
        code=fingerprint("schedule"),
        seconds=lookup("solver/time_limit_s", within=config),
        seed=lookup("solver/seed", within=config),
        folder=subpath(output.table1, parent=True),
    shell:
        "lazytrain published --out-dir {params.folder}"
        " --time-limit-s {params.seconds} --seed {params.seed} 2> {log}"
