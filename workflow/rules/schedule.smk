# Pose the planning problem, solve it, and replay the plan without the solver.


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
        mem_mb=2000,
        runtime="5m",
    params:
        config=EFFECTIVE_CONFIG,
        code=fingerprint("schedule.derive", "schedule.memory"),
        row=row_of,
        settings=settings_of("accelerators", "optimizer"),
    shell:
        "lazytrain instance --config {params.config} --hardware {input.hardware}"
        " --layers {input.layers} --accelerator {wildcards.accelerator}"
        " --scale {wildcards.scale} --system {wildcards.system}"
        " --out {output.instance} 2> {log}"


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
        " 2> {log}"


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
        code=fingerprint("schedule.check"),
    shell:
        "lazytrain check {input.plan} {input.instance} --out {output.report} 2> {log}"
