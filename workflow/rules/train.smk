# Run one row of the sheet: for its throughput, or to an accuracy.


rule train:
    input:
        split="results/data/split.json",
        rows="results/data/rows.jsonl",
        plan=plan_of,
        instance=instance_of,
        check=check_of,
    output:
        record=ensure(
            "results/runs/{accelerator}/{scale}/{system}/record.json", non_empty=True
        ),
    log:
        "logs/train/{accelerator}/{scale}/{system}.log",
    benchmark:
        "logs/benchmarks/train/{accelerator}/{scale}/{system}.jsonl"
    conda:
        "../../envs/train.yaml"
    threads: WHOLE_NODE
    resources:
        gpu=1,
        mem_mb=16000,
        runtime="4h",
    params:
        config=EFFECTIVE_CONFIG,
        code=fingerprint(
            "train", "baselines", "executor", "optim", "tiers", "models", "systems"
        ),
        row=row_of,
        settings=settings_of("optimizer", "nvme", "weights", "allow_truncation"),
        purpose=accelerator_settings("executor", "budgets", "throughput"),
        plan=plan_option,
        folder=subpath(output.record, parent=True),
    shell:
        "lazytrain run --config {params.config} --accelerator {wildcards.accelerator}"
        " --scale {wildcards.scale} --system {wildcards.system}"
        " --purpose throughput --split {input.split} --rows {input.rows}"
        " {params.plan} --out {params.folder} 2> {log}"


rule train_quality:
    input:
        split="results/data/split.json",
        rows="results/data/rows.jsonl",
        plan=plan_of,
        instance=instance_of,
        check=check_of,
    output:
        record=ensure(
            "results/quality/{accelerator}/{scale}/{system}/record.json",
            non_empty=True,
        ),
    log:
        "logs/quality/{accelerator}/{scale}/{system}.log",
    benchmark:
        "logs/benchmarks/quality/{accelerator}/{scale}/{system}.jsonl"
    conda:
        "../../envs/train.yaml"
    threads: WHOLE_NODE
    resources:
        gpu=1,
        mem_mb=16000,
        runtime="24h",
    params:
        config=EFFECTIVE_CONFIG,
        code=fingerprint(
            "train", "baselines", "executor", "optim", "tiers", "models", "systems"
        ),
        row=row_of,
        settings=settings_of("optimizer", "nvme", "weights", "allow_truncation"),
        purpose=accelerator_settings("executor", "budgets", "quality"),
        plan=plan_option,
        folder=subpath(output.record, parent=True),
    shell:
        "lazytrain run --config {params.config} --accelerator {wildcards.accelerator}"
        " --scale {wildcards.scale} --system {wildcards.system}"
        " --purpose quality --split {input.split} --rows {input.rows}"
        " {params.plan} --out {params.folder} 2> {log}"
