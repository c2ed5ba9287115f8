#!/usr/bin/env bash
# The whole GPU suite in one command of under nine minutes: bash bench/gpu.sh OUTDIR
# Runs from the source tree, installs nothing. Parts run in the order of their importance, each with
# a limit of its own; one that fails, or is cut off, leaves the others and what it had itself.
#   PARTS="steps curves" bash bench/gpu.sh OUTDIR    some parts alone, which share all the time
#   TINY=1 bash bench/gpu.sh OUTDIR                  rehearses every part on a CPU with small sizes
# OUTDIR gets results.json, tables.txt and log.txt; bench/fill_figures.py puts them into documents.
set -uo pipefail
out=${1:?usage: bash bench/gpu.sh OUTDIR}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
export PYTHONPATH=. PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore
python=${PYTHON:-python3}
tiny=${TINY:-0}
budget=${BUDGET_S:-$((tiny ? 1500 : 520))}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Parts in their order, and the seconds each wants: each gets its share of what is then left.
order=(settle tests steps peers curves training pool memory steps-more layers loading)
declare -A wants=([settle]=40 [tests]=110 [steps]=150 [peers]=90 [curves]=65 [training]=40 [pool]=20
    [memory]=30 [steps-more]=50 [layers]=35 [loading]=15)
total=0
for name in "${order[@]}"; do
    case " ${PARTS:-${order[*]}} " in *" $name "*) total=$((total + wants[$name])) ;; esac
done
status=0
: >"$out/log.txt"

# part NAME COMMAND...: within its share and what is left of the budget.
part() {
    local name=$1 seconds left
    shift
    case " ${PARTS:-${order[*]}} " in *" $name "*) ;; *) return ;; esac
    left=$((budget - SECONDS))
    seconds=$((wants[$name] * left / total))
    total=$((total - wants[$name]))
    if [ "$left" -lt 10 ]; then
        echo "== $name: not begun, the budget of $budget s is spent" | tee -a "$out/log.txt"
        return
    fi
    echo "== $name (at $SECONDS s, up to $seconds s)" | tee -a "$out/log.txt"
    # What compiles may outlast the deadline after which nothing is begun; the timeout ends it.
    DEADLINE=$((seconds * 6 / 10)) \
        timeout -k 20 "$seconds" bash -c "$*" 2>&1 | tee -a "$out/log.txt"
    local ended=${PIPESTATUS[0]}
    [ "$ended" -eq 0 ] || { echo "== $name ended with $ended" | tee -a "$out/log.txt"; status=1; }
    "$python" -m bench.join_results "$scratch" "$out" 2>&1 | tee -a "$out/log.txt" >/dev/null
}

{
    echo "date: $(date -u +%Y-%m-%dT%H:%MZ)"
    echo "gpu: $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo none)"
    "$python" -c "import torch, torch_geometric, numba, numpy; print(f'versions: torch {torch.__version__}, pyg {torch_geometric.__version__}, numba {numba.__version__}, numpy {numpy.__version__}, cuda {torch.cuda.is_available()}')"
} >"$scratch/machine.txt" || status=1

if [ "$tiny" = 1 ]; then
    py="$python -m"
    rows="--models gine:1x8 --batch-sizes 8 --rounds 3 --loss-steps 20"
    part settle "$py bench.settle --json $scratch/settle.json --deadline 40"
    part tests "$python -m pytest tests/test_gpu.py -m gpu -o addopts= -q -rs -p no:cacheprovider"
    part steps "$py bench.bench_runner $rows --modes pyg eager eager+kernels auto --json $scratch/steps.json"
    part peers "$py bench.bench_runner $rows --modes pyg pad-to-max --json $scratch/peers.json --deadline 1"
    part curves "$py bench.bench_curves --models gine:1x8 --modes eager eager+kernels --epochs 2 --batch-size 32 --graphs 320 --json $scratch/curves.json"
    part training "$py bench.bench_training --hidden 8 --layers 1 --graphs 256 --rounds 2 --workers 0 --modes eager --json $scratch/training.json"
    part pool "$py bench.bench_pool --hidden 8 --layers 1 --graphs 8 16 --json $scratch/pool.json"
    part memory "$py bench.bench_memory --model gine --hidden 8 --layers 1 --json $scratch/memory.json"
    part steps-more "$py bench.bench_runner $rows --modes pyg eager --json $scratch/steps-more.json"
    part layers "$py bench.bench_layers --count 8 --json $scratch/layers.json"
    part loading "$py bench.bench_loader --rounds 1 --json $scratch/loading.json"
else
    py="$python -m"
    ours="cuda-graph cuda-graph+kernels"
    peers="pyg-dynamic pyg-reduce-overhead pad-to-max"
    part settle "$py bench.settle --json $scratch/settle.json --deadline \$DEADLINE"
    part tests "$python -m pytest tests -m gpu -o addopts= -v -rs -p no:cacheprovider"
    part steps "$py bench.bench_runner --models gine:5x300 gps:10x64 --batch-sizes 32 256 --precision fp32 bf16 --modes pyg $ours --json $scratch/steps.json --deadline \$DEADLINE"
    part peers "$py bench.bench_runner --models gine:5x300 gps:10x64 --batch-sizes 32 --modes pyg cuda-graph+kernels $peers reduce-overhead eager eager+kernels auto --json $scratch/peers.json --deadline \$DEADLINE"
    part curves "$py bench.bench_curves --modes eager cuda-graph reduce-overhead --seeds 0 1 2 --json $scratch/curves.json --deadline \$DEADLINE"
    part training "$py bench.bench_training --device cuda --hidden 300 --layers 5 --modes cuda-graph --workers 0 8 --graphs 16384 --rounds 3 --json $scratch/training.json"
    part pool "$py bench.bench_pool --json $scratch/pool.json"
    part memory "$py bench.bench_memory --device cuda --model gine gps --json $scratch/memory.json"
    part steps-more "$py bench.bench_runner --models gps:10x384 gine:5x300 --batch-sizes 32 256 128 1024 --precision fp32 tf32 bf16 --modes pyg $ours --json $scratch/steps-more.json --deadline \$DEADLINE"
    part layers "$py bench.bench_layers --json $scratch/layers.json --deadline \$DEADLINE"
    part loading "$py bench.bench_loader --rounds 3 --json $scratch/loading.json"
fi
"$python" -m bench.join_results "$scratch" "$out" | tee -a "$out/log.txt"
exit $status
