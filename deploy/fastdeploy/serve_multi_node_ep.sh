#!/usr/bin/env bash
# FastDeploy over several machines: experts spread over all GPUs, attention data-parallel, a GPU a rank.
# Run the same command on every machine, with NODE_IPS in the same order (mpirun does). Each machine
# answers on ports PORT, PORT + 1, ..., one per GPU; put a load balancer in front.
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
require_model
IFS=, read -ra nodes <<< "$NODE_IPS"
ranks=$((GPUS * ${#nodes[@]}))

export FD_ENABLE_MULTI_API_SERVER=1
launch "${PYTHON:-python}" -m fastdeploy.entrypoints.openai.multi_api_server \
  --num-servers "$GPUS" \
  --ports "$(ports "$PORT" "$GPUS")" \
  --metrics-ports "$(ports "$((PORT + 100))" "$GPUS")" \
  --args \
  --model "$MODEL_DIR" \
  --served-model-name "$SERVED_MODEL_NAME" \
  --ips "$NODE_IPS" \
  --engine-worker-queue-port "$(ports "$((PORT + 200))" "$GPUS")" \
  --cache-queue-port "$(ports "$((PORT + 300))" "$GPUS")" \
  --tensor-parallel-size 1 \
  --data-parallel-size "$ranks" \
  --enable-expert-parallel \
  --max-model-len "$MAX_MODEL_LEN" \
  --max-num-seqs "$MAX_NUM_SEQS" \
  --gpu-memory-utilization "$GPU_MEMORY_UTILIZATION" \
  --load-choices default_v1 \
  --enable-logprob \
  ${QUANTIZATION:+--quantization "$QUANTIZATION"} \
  "$@"
