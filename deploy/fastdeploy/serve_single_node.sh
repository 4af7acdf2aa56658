#!/usr/bin/env bash
# FastDeploy on one machine, tensors split over its GPUs. Settings: config.env; more flags: "$@".
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
require_model
((TENSOR_PARALLEL_SIZE <= GPUS)) ||
  fail "TENSOR_PARALLEL_SIZE=$TENSOR_PARALLEL_SIZE; expected at most GPUS=$GPUS"

launch "${PYTHON:-python}" -m fastdeploy.entrypoints.openai.api_server \
  --model "$MODEL_DIR" \
  --served-model-name "$SERVED_MODEL_NAME" \
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
  --load-choices default_v1 \
  --enable-prefix-caching \
  --enable-chunked-prefill \
  --enable-logprob \
  ${QUANTIZATION:+--quantization "$QUANTIZATION"} \
  "$@"
