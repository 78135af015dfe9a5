# Exact match of a trained model over the test side of the split.


rule evaluate:
    input:
        split="results/data/split.json",
        rows="results/data/rows.jsonl",
        record="results/quality/{accelerator}/{scale}/{system}/record.json",
    output:
        record=ensure(
            "results/quality/{accelerator}/{scale}/{system}/eval.json", non_empty=True
        ),
    log:
        "logs/evaluate/{accelerator}/{scale}/{system}.log",
    benchmark:
        "logs/benchmarks/evaluate/{accelerator}/{scale}/{system}.jsonl"
    conda:
        "../../envs/train.yaml"
    threads: WHOLE_NODE
    resources:
        gpu=1,
        mem_mb=16000,
        runtime="12h",
    params:
        config=EFFECTIVE_CONFIG,
        code=fingerprint("evaluate", "data"),
        rows=test_rows(),
        remade=remakings("results/quality/{accelerator}/{scale}/{system}/eval.json"),
        folder=subpath(input.record, parent=True),
    shell:
        "lazytrain evaluate --config {params.config} --weights {params.folder}/weights"
        " --split {input.split} --rows {input.rows} --record {input.record}"
        " --out {output.record} 2> {log}"
