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

load_settings
