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
launch_server \
  --dynamic-load-weight \
  --load-strategy "$LOAD_STRATEGY" \
  --routing-replay-config "$replay" \
  "$@"
