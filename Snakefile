# The door: `snakemake --cores all results/table3.csv` works from the root as well.
include: "workflow/Snakefile"


rule paper:
    default_target: True
    input:
        rules.all.input,
