# The 70/30 split of the data set, and what a random one would give away.


rule split_data:
    output:
        manifest=ensure("results/data/split.json", non_empty=True),
        rows=ensure("results/data/rows.jsonl", non_empty=True),
    log:
        "logs/data/split.log",
    benchmark:
        "logs/benchmarks/data/split.jsonl"
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime="30m",
    params:
        config=EFFECTIVE_CONFIG,
        code=fingerprint("data"),
        settings=settings_of(
            "data", "test_data", "split_mode", "train_fraction", "seed", "synthetic"
        ),
    shell:
        "lazytrain data split --config {params.config} --out {output.manifest}"
        " --rows {output.rows} 2> {log}"


localrules:
    leak_table,


rule measure_leak:
    input:
        manifest="results/data/split.json",
        rows="results/data/rows.jsonl",
    output:
        record=ensure("results/data/leak.json", non_empty=True),
    log:
        "logs/data/leak.log",
    benchmark:
        "logs/benchmarks/data/leak.jsonl"
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime="30m",
    params:
        code=fingerprint("data"),
    shell:
        "lazytrain data leak --split {input.manifest} --rows {input.rows}"
        " --out {output.record} 2> {log}"


rule leak_table:
    input:
        record="results/data/leak.json",
    output:
        table=report(
            ensure("results/leak.csv", non_empty=True),
            caption="../report/leak.rst",
            category="Data",
        ),
    log:
        "logs/report/leak.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        code=fingerprint("report"),
    shell:
        "lazytrain report leak {input.record} --out {output.table} 2> {log}"
