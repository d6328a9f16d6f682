#!/usr/bin/env bash
# Runs one cell and fails the job unless its certificate may be promoted.
# SERVER and MODEL name the llama-server and the GGUF file; OUT is where the results go.
set -euo pipefail

: "${SERVER:?path of a llama-server}" "${MODEL:?path of a GGUF file}"
OUT=${OUT:-certs}
WORKSET=${WORKSET:-examples/workset.json}

# 1. The run. Exit 3 is a verdict that does not promote; its files are wanted all the same.
code=0
batch-invariance run-live --server-bin "$SERVER" --model "$MODEL" --workset "$WORKSET" \
    --ctx 2048 --parallel 4 --model-alias cell --out-dir "$OUT" || code=$?
if [ "$code" -ne 0 ] && [ "$code" -ne 3 ]; then
    echo "no verdict: batch-invariance ended with $code" >&2
    exit "$code"
fi

# 2. The gate: derives the certificate again from its evidence; 0 only when it is promotable.
batch-invariance verify-cert "$OUT/cell__ctx2048__N4.json"
