# Tables, comparison and figures: functions of records, made in seconds.


localrules:
    predict,
    table2,
    table3,
    table3_scale,
    table4,
    table5,
    compare,
    figure_throughput,
    figure_quality,
    figure6,


rule table2:
    input:
        profiles=profile_files(),
        paper="config/paper/table2.csv",
    output:
        table=report(
            ensure("results/table2.csv", non_empty=True),
            caption="../report/table2.rst",
            category="Machine",
        ),
    log:
        "logs/report/table2.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        code=fingerprint("report"),
        remade=remakings("results/table2.csv"),
    shell:
        "lazytrain report table2 {input.profiles} --out {output.table} 2> {log}"


rule predict:
    input:
        hardware=described("hardware.json"),
        layers=described("layers.json"),
        machines=published_machines(),
    output:
        table=report(
            ensure("results/table3_predicted.csv", non_empty=True),
            caption="../report/table3_predicted.rst",
            category="Throughput",
        ),
    log:
        "logs/report/table3_predicted.log",
    conda:
        "../../envs/solve.yaml"
    params:
        config=EFFECTIVE_CONFIG,
        code=fingerprint("report", "schedule", "profile.targets", "systems"),
        sheet=lookup("runs", within=config),
        settings=settings_of("optimizer"),
        machines=planned_settings(),
        profiles=profile_options,
    shell:
        "lazytrain predict --config {params.config} {params.profiles}"
        " --out {output.table} 2> {log}"


rule table3:
    input:
        records=run_files("table3"),
        predicted="results/table3_predicted.csv",
        paper="config/paper/table3.csv",
    output:
        table=report(
            ensure("results/table3.csv", non_empty=True),
            caption="../report/table3.rst",
            category="Throughput",
        ),
    log:
        "logs/report/table3.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        code=fingerprint("report"),
        remade=remakings("results/table3.csv"),
        accelerators=ACCELERATORS,
        sheet=lookup("runs", within=config),
    shell:
        "lazytrain report table3 {input.records} --sheet {params.sheet}"
        " --accelerator {params.accelerators} --predicted {input.predicted}"
        " --out {output.table} 2> {log}"


rule table3_scale:
    input:
        records=scale_files,
        predicted="results/table3_predicted.csv",
        paper="config/paper/table3.csv",
    output:
        table=report(
            ensure("results/table3/{scale}.csv", non_empty=True),
            caption="../report/table3.rst",
            category="Throughput",
        ),
    log:
        "logs/report/table3/{scale}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        code=fingerprint("report"),
        remade=remakings("results/table3/{scale}.csv"),
        accelerators=ACCELERATORS,
        sheet=lookup("runs", within=config),
    shell:
        "lazytrain report table3 {input.records} --sheet {params.sheet}"
        " --accelerator {params.accelerators} --scale {wildcards.scale}"
        " --predicted {input.predicted}"
        " --out {output.table} 2> {log}"


rule table4:
    input:
        records=evaluation_files(),
        paper="config/paper/table4.csv",
    output:
        table=report(
            ensure("results/table4.csv", non_empty=True),
            caption="../report/table4.rst",
            category="Accuracy",
        ),
    log:
        "logs/report/table4.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        code=fingerprint("report"),
        remade=remakings("results/table4.csv"),
        accelerators=ACCELERATORS,
        sheet=lookup("runs", within=config),
    shell:
        "lazytrain report table4 {input.records} --sheet {params.sheet}"
        " --accelerator {params.accelerators}"
        " --out {output.table} 2> {log}"


rule table5:
    input:
        records=run_files("table5"),
        predicted="results/table3_predicted.csv",
        paper="config/paper/table5.csv",
    output:
        table=report(
            ensure("results/table5.csv", non_empty=True),
            caption="../report/table5.rst",
            category="Throughput",
        ),
    log:
        "logs/report/table5.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        code=fingerprint("report"),
        remade=remakings("results/table5.csv"),
        accelerators=ACCELERATORS,
        sheet=lookup("runs", within=config),
    shell:
        "lazytrain report table5 {input.records} --sheet {params.sheet}"
        " --accelerator {params.accelerators} --predicted {input.predicted}"
        " --out {output.table} 2> {log}"


rule compare:
    input:
        records=run_files("table3", "table5"),
        evaluations=evaluation_files(),
        claims="config/claims.yaml",
        paper=["config/paper/table3.csv", "config/paper/table4.csv"],
    output:
        table=report(
            ensure("results/compare.csv", non_empty=True),
            caption="../report/compare.rst",
            category="Claims",
        ),
    log:
        "logs/report/compare.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        code=fingerprint("report"),
        remade=remakings("results/compare.csv"),
        accelerators=ACCELERATORS,
        evaluations=evaluation_options(),
    shell:
        "lazytrain report compare {input.records} {params.evaluations}"
        " --claims {input.claims} --accelerator {params.accelerators}"
        " --out {output.table} 2> {log}"


rule figure_throughput:
    input:
        table="results/table3.csv",
    output:
        figure=report(
            ensure("results/figures/throughput.svg", non_empty=True),
            caption="../report/throughput.rst",
            category="Throughput",
        ),
    log:
        "logs/report/throughput.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        code=fingerprint("report"),
    shell:
        "lazytrain report figure throughput {input.table} --out {output.figure}"
        " 2> {log}"


rule figure_quality:
    input:
        table="results/table4.csv",
    output:
        figure=report(
            ensure("results/figures/quality.svg", non_empty=True),
            caption="../report/quality.rst",
            category="Accuracy",
        ),
    log:
        "logs/report/quality.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        code=fingerprint("report"),
    shell:
        "lazytrain report figure quality {input.table} --out {output.figure} 2> {log}"


rule figure6:
    input:
        records=course_files(),
    output:
        figure=report(
            ensure("results/figures/figure6.svg", non_empty=True),
            caption="../report/figure6.rst",
            category="Accuracy",
        ),
        table=report(
            ensure("results/figure6.csv", non_empty=True),
            caption="../report/figure6.rst",
            category="Accuracy",
        ),
    log:
        "logs/report/figure6.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        code=fingerprint("report"),
    shell:
        "lazytrain report curves {input.records} --out {output.figure}"
        " --table {output.table} 2> {log}"
