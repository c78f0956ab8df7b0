#!/bin/sh
# Checks and measures Paceline on the GPU of this machine within 8 minutes; without a GPU it runs the
# same, small, on the CPU and says so. LIMIT_S: other seconds than these 8 minutes. Options: see
# benchmarks/gpu.py.
set -eu
cd "$(dirname "$0")/.."
python=python3
[ ! -x .venv/bin/python ] || python=.venv/bin/python
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" KINETO_LOG_LEVEL=5 HF_HUB_OFFLINE=1
exec timeout --kill-after=20 "${LIMIT_S:-480}" "$python" benchmarks/gpu.py "$@"
