#!/usr/bin/env bash
# The GPU suite in three calls of under nine minutes; each is useful on its own:
#   bash bench/gpu.sh first     correctness and speed: kernels, one step in detail, tests
#   bash bench/gpu.sh second    comparisons: peers, end to end, curves, pool, memory
#   bash bench/gpu.sh third     range: other sizes and precisions, layers, loading
# a fourth for a machine with several GPUs, and one that needs none, before the first:
#   bash bench/gpu.sh ranks     cost of a step on one, two and four ranks over NCCL
#   bash bench/gpu.sh cache     fills Triton's cache by dry runs, to be handed to the first call
# bench/gpu_parts.sh lists the parts. The suite runs from the source tree and installs nothing. Each
# part is a process with its own time limit, so one that fails or is cut off does not affect the
# others. No part begins unless the call has time left, and those that did not run are listed.
#
# If a device is lent per call, these three lines are the commands, each with a limit of 590 s:
#   first:   CARRIED=.gpu bash bench/gpu.sh first
#   second:  CARRIED=.gpu bash bench/gpu.sh second
#   third:   CARRIED=.gpu bash bench/gpu.sh third
# Before the first, in an environment with the device's versions of Python, torch and Triton (a
# kernel's key has Triton's sources and its ptxas in it), so that the call measures and does not compile:
#   PYTHON=ENV/bin/python OUT=.gpu bash bench/gpu.sh cache
# The look of each model prints how many kernels came from it. Between the calls, the files that came
# back go into a folder that git ignores and that the next call carries:
#   echo /.gpu/ >>.git/info/exclude; rm -rf .gpu; mkdir .gpu; cp FILES_AT/* .gpu/      (carry: .gpu)
#
#   OUT=DIR           receives results.json, tables.txt, log.txt, and compiled code as cache.tgz.*
#   CARRIED=DIR       results and compiled kernels of the previous call; both are kept
#   PARTS="a b"       runs only these parts
#   BUDGET_S=490      seconds after which no part runs
#   TINY=1            rehearses every part on a CPU with small sizes; its figures mean nothing
#   LIST=1            prints the parts' names, limits and commands, and runs nothing
set -uo pipefail
call=${1:-}
case $call in first | second | third | ranks | cache) ;; *)
    echo "usage: [OUT=DIR] bash bench/gpu.sh first|second|third|ranks|cache" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
tiny=${TINY:-0}
budget=${BUDGET_S:-$((tiny ? 1500 : 490))}
least=${LEAST_S:-15} # a part is not begun with less time than this
patience=${PATIENCE:-$((tiny ? 4 : 1))}
status=0
names=() ended=() skipped=()
machine=("$python" -m bench.machine)
[ "$tiny" = 1 ] || [ "$call" = cache ] || machine+=(--gpu)
source "${PARTS_FROM:-bench/gpu_parts.sh}"

export PYTHONPATH=. PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
device=cuda
if [ "$tiny" = 1 ]; then
    device=cpu
    export STATICGRAPH_REHEARSAL=1
fi

# part NAME SECONDS COMMAND... runs one part. It may take its limit plus the time that the parts
# before it did not need, and at most what is left of the call. `due` is when it must end so that
# the parts after it have their time.
part() {
    local name=$1 seconds=$2 left grace began code size command ending=TERM
    shift 2
    case " ${PARTS:-$name} " in *" $name "*) ;; *) return ;; esac
    seconds=$((seconds * patience))
    if [ "${LIST:-0}" = 1 ]; then
        printf '%s\t%s\t%s\n' "$name" "$seconds" "$*"
        return
    fi
    left=$((budget - SECONDS))
    if [ "$left" -lt "$least" ]; then
        say "== $name: not run, $left s of $budget s are left"
        skipped+=("$name")
        return
    fi
    due=$((due + seconds))
    [ "$seconds" -ge $((due - SECONDS)) ] || seconds=$((due - SECONDS))
    [ "$seconds" -le "$left" ] || seconds=$left
    # A part is asked to end and write its results before it is killed.
    grace=$((seconds / 5 < 15 ? seconds / 5 : 15))
    [ "$grace" -gt 0 ] || grace=1
    command=("${@//\{json\}/$scratch/$name.json}")
    command=("${command[@]//\{deadline\}/$((seconds * 6 / 10))}")
    command=("${command[@]//\{device\}/$device}")
    case ${command[0]} in
    bench.* | staticgraph) command=("$python" -m "${command[@]}") ;;
    # Tests are interrupted, so that finished ones are reported. Each of the fourteen processes
    # compiles by itself, since sixteen compile workers each would be more than there are cores.
    tests)
        command=(env TORCHINDUCTOR_COMPILE_THREADS=1 "$python" -m pytest "${command[@]:1}" "${pytest[@]}")
        ending=INT
        ;;
    esac
    say "== $name, at $SECONDS s, up to $seconds s: ${command[*]}"
    began=$SECONDS
    code=0
    # Into a file, since a pipe would wait for any process that a part leaves running.
    size=$(stat -c %s "$out/log.txt")
    timeout -s "$ending" -k "$grace" $((seconds - grace)) "${command[@]}" >>"$out/log.txt" 2>&1 || code=$?
    tail -c +$((size + 1)) "$out/log.txt"
    say "== $name ended with $code after $((SECONDS - began)) s"
    names+=("$name") ended+=("$code after $((SECONDS - began)) s")
    [ "$code" -eq 0 ] || status=1
}

say() { echo "$*" | tee -a "$out/log.txt"; }

if [ "${LIST:-0}" = 1 ]; then
    "parts_$call"
    exit
fi

# On a GPU, the tests marked gpu; in a rehearsal, the same test bodies on the CPU.
pytest=(-m gpu -n 14 -o addopts= -v -rs -p no:cacheprovider --timeout 80)
[ "$tiny" = 1 ] && pytest=(-k cpu -m "not slow" -o addopts= -q -p no:cacheprovider)
out=${OUT:-runs/gpu}
mkdir -p "$out"
out=$(cd "$out" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
: >"$out/log.txt"

# Compiled code is kept for the next call: on this machine, or in the files that came back from it.
caches=${CACHES:-${TMPDIR:-/tmp}/staticgraph-gpu}
mkdir -p "$caches"
export TORCHINDUCTOR_CACHE_DIR=$caches/inductor TRITON_CACHE_DIR=$caches/triton
export NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR-$caches/numba} # empty: next to the sources
carried=${CARRIED:-}
if [ -n "$carried" ]; then
    [ ! -f "$carried/results.json" ] || [ "$carried" -ef "$out" ] || cp "$carried/results.json" "$out/"
    if ls "$carried"/cache.tgz.* >/dev/null 2>&1 && [ ! -d "$caches/triton" ]; then
        cat "$carried"/cache.tgz.* | timeout 30 tar xzf - -C "$caches" 2>&1 | tee -a "$out/log.txt"
    fi
    chmod -R u+w "$caches" "$out" 2>/dev/null
fi

# If this fails, nothing else can run.
say "== versions"
if ! timeout -k 5 120 "${machine[@]}" >"$scratch/machine.txt" 2>"$scratch/said.txt"; then
    cat "$scratch/machine.txt" "$scratch/said.txt" | tee -a "$out/log.txt"
    say "== stopped: this machine cannot run the suite"
    exit 1
fi
cat "$scratch/machine.txt" "$scratch/said.txt" | tee -a "$out/log.txt"

due=$SECONDS
"parts_$call"
for name in ${PARTS:-}; do
    case " ${names[*]-} ${skipped[*]-} " in *" $name "*) ;; *)
        say "== $name is no part of the $call call"
        status=1
        ;;
    esac
done

# Split to what may come back: at most four files of 15 MiB.
if [ "${KEEP_CACHES:-1}" = 1 ]; then
    rm -f "$out"/cache.tgz.*
    timeout 15 tar czf "$scratch/cache.tgz" -C "$caches" . 2>/dev/null
    if [ "$(stat -c %s "$scratch/cache.tgz" 2>/dev/null || echo 99999999)" -gt 47000000 ]; then
        say "== what was compiled is more than may come back: Triton's kernels alone are kept"
        timeout 8 tar czf "$scratch/cache.tgz" -C "$caches" triton 2>/dev/null
    fi
    split -b 15M "$scratch/cache.tgz" "$out/cache.tgz."
fi
printf '%s\n' ${skipped[@]+"${skipped[@]}"} >"$scratch/not_run.txt"
timeout 15 "$python" -m bench.join_results "$scratch" "$out" | tee -a "$out/log.txt"
for i in "${!names[@]}"; do say "   ${names[$i]}: ${ended[$i]}"; done
say "== $call: ${#names[@]} parts ran, not run: ${skipped[*]:-none}; $SECONDS s"
exit $status
