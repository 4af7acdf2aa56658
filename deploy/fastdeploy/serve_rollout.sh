#!/usr/bin/env bash
# FastDeploy as the rollout engine of a training run: weights are replaced while it runs, and the experts
# that each token chose are stored for the trainer to replay.
# The store is emptied at the start. Routes are keyed by `user`, and only chats with n = 1 have them.
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
require_model
[[ $ROUTES_DIR != *[\"\\]* ]] || fail "ROUTES_DIR=$ROUTES_DIR; expected a path without quotes"
replay='{"enable_routing_replay":true,"routing_store_type":"local","local_store_dir":"'$ROUTES_DIR'"}'

export ENABLE_V1_KVCACHE_SCHEDULER=1 # /v1/pause needs it
export FD_ENABLE_V1_UPDATE_WEIGHTS=1 # the older control calls take the newer path
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
  --dynamic-load-weight \
  --load-strategy "$LOAD_STRATEGY" \
  --routing-replay-config "$replay" \
  --enable-logprob \
  ${QUANTIZATION:+--quantization "$QUANTIZATION"} \
  "$@"
