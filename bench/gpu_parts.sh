# The parts of each call of bench/gpu.sh, most important first: part NAME SECONDS COMMAND...
# A command is a module of bench, or `tests` and files of tests. {json}, {deadline} and {device} are
# filled in by gpu.sh. One model a process: what one leaves on the device ends with it.
# The seconds of a call add up to less than its budget, so that every part has its own; what one does
# not need the next may take.

if [ "${TINY:-0}" = 1 ]; then
    # Sizes for a CPU: what is rehearsed is that every part runs and leaves what it should.
    gine=gine:1x8 gps=gps:1x8 wide=gps:1x8 small=8 middle=8 large=8 precision=bf16
    timing="--rounds 3 --rows-of-steps 2 --in-a-row 2 --loss-steps 24"
    curves="--epochs 1 --batch-size 32 --graphs 160"
    training="--hidden 8 --layers 1 --graphs 128 --rounds 1 --workers 0"
    pool="--hidden 8 --layers 1 --graphs 8 16" memory="--hidden 8 --layers 1"
    layers="--count 6" loading="--rounds 1" host="--rounds 5 --hidden 8 --layers 1"
    small_ranks="--hidden 8 --layers 1 --steps 3" wide_ranks="$small_ranks" ranks="1 2"
else
    gine=gine:5x300 gps=gps:10x64 wide=gps:10x384 small=32 middle=256 large=1024 precision=bf16
    timing=""
    curves="--epochs 3"
    training="--hidden 300 --layers 5 --graphs 16384 --rounds 3 --workers 0 8"
    pool="" memory="" layers="" loading="--rounds 3" host=""
    small_ranks="--steps 200" wide_ranks="--hidden 300 --layers 5 --steps 200" ranks="1 2 4"
fi
ours="cuda-graph+kernels cuda-graph" fused="cuda-graph+kernels"

steps() { # steps NAME SECONDS MODEL BATCH PRECISION MODES...
    local name=$1 seconds=$2 model=$3 batch=$4 in=$5
    shift 5
    part "$name" "$seconds" bench.bench_runner --models "$model" --batch-sizes "$batch" \
        --precision "$in" --modes "$@" $timing --json {json} --deadline {deadline}
}

# A look is taken in the process that recorded and timed the step, after its rows are written; each
# answer is written when it is there, so a part that is cut off loses what it was at.
parts_first() { # is it right, and how fast is it?
    part kernels 90 tests tests/test_gpu_kernels.py tests/test_gpu_collation.py
    part micro 40 bench.micro --json {json} --deadline {deadline}
    steps gine32 110 "$gine" "$small" fp32 pyg $fused --look $fused
    steps gps32 130 "$gps" "$small" fp32 pyg $fused --look $fused
    part tests 110 tests tests/test_gpu.py tests/test_gpu_trajectory.py tests/test_gpu_recording.py
}

parts_second() { # against whom, and does it learn?
    steps peers-gine 115 "$gine" "$small" fp32 pyg $ours pyg-dynamic pad-to-powers pad-to-max \
        pyg-reduce-overhead reduce-overhead
    steps peers-gps 100 "$gps" "$small" fp32 pyg $ours pyg-dynamic reduce-overhead
    part settle 35 bench.settle --json {json} --deadline {deadline}
    part training 75 bench.bench_training --device {device} $training --modes cuda-graph --dynamic \
        --json {json} --deadline {deadline}
    part curves 60 bench.bench_curves --models "$gine" --modes eager cuda-graph+kernels \
        $curves --json {json} --deadline {deadline}
    part pool 30 bench.bench_pool $pool --json {json}
    part memory-gine 25 bench.bench_memory --device {device} --model gine $memory --json {json}
    part memory-gps 40 bench.bench_memory --device {device} --model gps $memory --json {json}
}

parts_third() { # how far does it go?
    steps gine256 50 "$gine" "$middle" fp32 pyg $ours
    steps gine32-half 40 "$gine" "$small" $precision pyg $ours
    steps gps32-half 60 "$gps" "$small" $precision pyg $ours
    steps gps256 50 "$gps" "$middle" fp32 pyg $ours
    steps wide32 60 "$wide" "$small" fp32 pyg cuda-graph+kernels
    steps gine1024 35 "$gine" "$large" fp32 pyg cuda-graph+kernels
    part auto 45 bench.bench_runner --models "$gine" --batch-sizes "$small" --modes pyg auto \
        $timing --json {json} --deadline {deadline}
    part more-tests 70 tests tests/test_gpu_attention.py tests/test_out_of_memory.py \
        tests/test_outofcore_loader.py tests/test_outofcore_encoder.py
    part layers 35 bench.bench_layers $layers --json {json} --deadline {deadline}
    part loading 20 bench.bench_loader $loading --json {json}
    part host 15 bench.bench_host_time $host --json {json}
}

parts_ranks() { # what do several GPUs cost?
    part ranks 150 bench.bench_distributed --device {device} --ranks $ranks $small_ranks \
        --json {json} --deadline {deadline}
    part ranks-wide 200 bench.bench_distributed --device {device} --ranks $ranks $wide_ranks \
        --json {json} --deadline {deadline}
}

parts_cache() { # what can be compiled without a GPU?
    local model
    for model in gine gps; do
        part "dry-$model" 230 staticgraph check --for h100 --model bench.steps:$model \
            --data examples/data/hiv.npz --loss bench.steps:bce --kernels --mode cuda-graph \
            --batch-size 32
    done
}
