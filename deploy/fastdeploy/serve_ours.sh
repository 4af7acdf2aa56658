#!/usr/bin/env bash
# paddle_ernie's own server with the same settings and FastDeploy's flags: on CPUs, as a rollout engine.
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
require_model

launch "${PYTHON:-python}" "${TOOLS_DIR:-$HERE/../../tools}/serve.py" \
  --model "$MODEL_DIR" \
  --served-model-name "$SERVED_MODEL_NAME" \
  --host "$HOST" \
  --port "$PORT" \
  --max-model-len "$MAX_MODEL_LEN" \
  --max-num-seqs "$MAX_NUM_SEQS" \
  --max-concurrency "$MAX_CONCURRENCY" \
  --enable-prefix-caching \
  --enable-chunked-prefill \
  --enable-logprob \
  --dynamic-load-weight \
  --weights-dir "$WEIGHTS_DIR" \
  "$@"
