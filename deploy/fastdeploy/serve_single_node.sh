#!/usr/bin/env bash
# FastDeploy on one machine, tensors split over its GPUs. Settings: config.env; more flags: "$@".
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
require_model
((TENSOR_PARALLEL_SIZE <= GPUS)) ||
  fail "TENSOR_PARALLEL_SIZE=$TENSOR_PARALLEL_SIZE; expected at most GPUS=$GPUS"

launch_server \
  --served-model-name "$SERVED_MODEL_NAME" \
  --load-choices default_v1 \
  --enable-prefix-caching \
  --enable-chunked-prefill \
  "$@"
