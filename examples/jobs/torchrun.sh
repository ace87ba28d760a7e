#!/bin/bash
# On every node: NODE_RANK=0 MASTER_ADDR=node0 ./torchrun.sh
set -euo pipefail
export RUN=${SCRATCH:-/tmp}/overlap-run KEEP=${KEEP:-$HOME/runs/$(date +%Y%m%d-%H%M%S)}
exec torchrun --nnodes "${NNODES:-2}" --nproc-per-node "${GPUS:-8}" --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}" train.py
