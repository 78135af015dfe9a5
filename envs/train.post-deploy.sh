#!/usr/bin/env bash
# Snakemake runs this in the new environment: the package itself, without its
# dependencies, which the environment file has brought.
set -euo pipefail
pip install --no-deps "${LAZYTRAIN_SOURCE:-$PWD}"
