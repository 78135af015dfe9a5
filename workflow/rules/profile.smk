# What the machine and the models cost, measured.


rule profile_hardware:
    output:
        profile=ensure("results/profile/{accelerator}/hardware.json", non_empty=True),
    log:
        "logs/profile/{accelerator}/hardware.log",
    benchmark:
        "logs/benchmarks/profile/{accelerator}/hardware.jsonl"
    conda:
        "../../envs/train.yaml"
    threads: WHOLE_NODE
    resources:
        gpu=1,
        mem_mb=8000,
        runtime="30m",
    params:
        config=EFFECTIVE_CONFIG,
        code=fingerprint("profile", "optim"),
        settings=settings_of("scratch"),
        machine=machine_settings,
    shell:
        "lazytrain profile hardware --config {params.config}"
        " --accelerator {wildcards.accelerator} --out {output.profile} 2> {log}"


rule profile_layers:
    input:
        hardware="results/profile/{accelerator}/hardware.json",
    output:
        profile=ensure(
            "results/profile/{accelerator}/{scale}/layers.json", non_empty=True
        ),
    log:
        "logs/profile/{accelerator}/{scale}/layers.log",
    benchmark:
        "logs/benchmarks/profile/{accelerator}/{scale}/layers.jsonl"
    conda:
        "../../envs/train.yaml"
    threads: WHOLE_NODE
    resources:
        gpu=1,
        mem_mb=16000,
        runtime="30m",
    params:
        config=EFFECTIVE_CONFIG,
        code=fingerprint("profile", "models", "executor"),
        bench=bench_of,
    shell:
        "lazytrain profile layers --config {params.config}"
        " --accelerator {wildcards.accelerator} --scale {wildcards.scale}"
        " --out {output.profile} 2> {log}"
