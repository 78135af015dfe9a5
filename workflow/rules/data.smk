# The 70/30 split of the data set.


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
