#!/usr/bin/env bash
# Runs a command that finds a Python with the real Megatron Bridge:
#   bash scripts/with_megatron.sh BIN HOME COMMAND...
# The environment is made once, by firstbad's own builder, from the demo's lock.
set -euo pipefail
bin=$1 home=$2
shift 2
mkdir -p "$home"
home=$(cd "$home" && pwd)
python=$("$bin/python" -m tests.megatron_environment "$home")
FIRSTBAD_TEST_HOME="$home" FIRSTBAD_TEST_MEGATRON_PYTHON="$python" exec "$@"
