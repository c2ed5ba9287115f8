#!/usr/bin/env bash
# The whole GPU suite in one command of under nine minutes: bash bench/gpu.sh OUTDIR
# Runs from the source tree, installs nothing, leaves JSON and tables in OUTDIR.
# TINY=1 rehearses every script on a CPU with small sizes.
set -uo pipefail
out=${1:?usage: bash bench/gpu.sh OUTDIR}
mkdir -p "$out"
cd "$(dirname "$0")/.."
export PYTHONPATH=. PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
if [ "${TINY:-0}" = 1 ]; then
    models="gine:1x8" batches="8" modes="pyg eager" precisions="fp32" rounds=3 deadline=30
else
    models="gine:5x300 gps:10x64" batches="32 128 256 1024" modes="pyg pyg-dynamic eager reduce-overhead cuda-graph"
    precisions="fp32 bf16" rounds=50 deadline=200
fi
status=0
{
    date -u +%Y-%m-%dT%H:%MZ
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no GPU"
    "$python" -c "import torch, torch_geometric, numba, numpy; print('torch', torch.__version__, 'pyg', torch_geometric.__version__, 'numba', numba.__version__, 'numpy', numpy.__version__, 'cuda', torch.cuda.is_available())"
} | tee "$out/machine.txt" || status=1

echo "== tests marked gpu"
timeout 210 "$python" -m pytest tests -m gpu -o addopts="" -q -rs -p no:cacheprovider 2>&1 | tee "$out/tests.txt" || status=1

echo "== steps"
# shellcheck disable=SC2086
timeout 250 "$python" -m bench.bench_runner --models $models --batch-sizes $batches --modes $modes \
    --precision $precisions --rounds $rounds --deadline $deadline --json "$out/steps.json" 2>&1 | tee "$out/steps.txt" || status=1

echo "== loading"
timeout 45 "$python" -m bench.bench_loader --rounds 3 --json "$out/loader.json" 2>&1 | tee "$out/loader.txt" || status=1
exit $status
