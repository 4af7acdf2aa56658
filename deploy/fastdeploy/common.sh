# Sourced by the launch scripts: settings, checks, and the launch itself.
#
#   PRINT_ONLY=1 ./serve_single_node.sh     prints the command, an argument a line, and starts nothing

set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Settings from config.env (or the file CONFIG names) unless the environment has them already.
load_settings() {
  local line name
  while IFS= read -r line; do
    [[ $line =~ ^[A-Z_]+= ]] || continue
    name=${line%%=*}
    [[ -n ${!name+set} ]] || export "$name=${line#*=}"
  done < "${CONFIG:-$HERE/config.env}"
}

fail() {
  echo "error: $*" >&2
  exit 2
}

require_model() {
  [[ ${PRINT_ONLY:-} == 1 || -f $MODEL_DIR/config.json ]] ||
    fail "MODEL_DIR=$MODEL_DIR has no config.json; give an export: python tools/export.py --output DIR"
}

# `ports 8200 3` is 8200,8201,8202: a server of its own for each data-parallel rank.
ports() {
  local first=$1 count=$2
  seq -s, "$first" $((first + count - 1))
}

# Become the server, so that signals of systemd and Kubernetes reach it.
launch() {
  if [[ ${PRINT_ONLY:-} == 1 ]]; then
    printf '%s\n' "$@"
    return
  fi
  exec "$@"
}

# One FastDeploy server, with the settings that every such server has and then the flags given.
launch_server() {
  launch "${PYTHON:-python}" -m fastdeploy.entrypoints.openai.api_server \
    --model "$MODEL_DIR" \
    --host "$HOST" \
    --port "$PORT" \
    --metrics-port "$METRICS_PORT" \
    --engine-worker-queue-port "$ENGINE_WORKER_QUEUE_PORT" \
    --cache-queue-port "$CACHE_QUEUE_PORT" \
    --tensor-parallel-size "$TENSOR_PARALLEL_SIZE" \
    --max-model-len "$MAX_MODEL_LEN" \
    --max-num-seqs "$MAX_NUM_SEQS" \
    --max-concurrency "$MAX_CONCURRENCY" \
    --gpu-memory-utilization "$GPU_MEMORY_UTILIZATION" \
    --enable-logprob \
    ${QUANTIZATION:+--quantization "$QUANTIZATION"} \
    "$@"
}

load_settings
