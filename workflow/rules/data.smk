# The effective config, and the 70/30 split of the data set.


localrules:
    effective_config,


rule effective_config:
    output:
        config=ensure("results/config.json", non_empty=True),
    log:
        "logs/config.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        text=EFFECTIVE_CONFIG,
    shell:
        "printf '%s\\n' {params.text:q} > {output.config} 2> {log}"


rule split_data:
    input:
        config=ancient("results/config.json"),
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
        code=fingerprint("data"),
        settings=settings_of(
            "data", "split_mode", "train_fraction", "seed", "synthetic"
        ),
    shell:
        "lazytrain data split --config {input.config} --out {output.manifest}"
        " --rows {output.rows} 2> {log}"
