# Exact match of a trained model over the test side of the split.


rule evaluate:
    input:
        config=ancient("results/config.json"),
        split="results/data/split.json",
        record="results/quality/{accelerator}/{scale}/{system}/record.json",
        weights="results/quality/{accelerator}/{scale}/{system}/weights",
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
        code=fingerprint("evaluate", "data"),
    shell:
        "lazytrain evaluate --config {input.config} --weights {input.weights}"
        " --split {input.split} --record {input.record}"
        " --out {output.record} 2> {log}"
