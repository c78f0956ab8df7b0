#!/bin/sh
# Generates paceline/v1 from the protocol. The folder given (default: the repository) receives it.
set -eu
cd "$(dirname "$0")/.."
out="${1:-.}"
mkdir -p "$out"
python -m grpc_tools.protoc -I protos --python_out="$out" --pyi_out="$out" \
    --grpc_python_out="$out" protos/paceline/v1/*.proto
