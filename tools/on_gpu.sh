#!/usr/bin/env bash
# Repeats what was measured on one large GPU, part by part. Finished work is skipped, stopped work goes on.
#
#   DATA=FOLDER bash tools/on_gpu.sh tests tune speed kernels forecasts protocol small rules mechanisms questions unfamiliar rotary
#
# DATA holds enwik8, novels/, ETTh1.csv, ETTh2.csv, ETTm1.csv, WTH.csv and, if it is there, stories15M/, the model that
# `rotary` starts from. OUT (default: runs/gpu) gets the results, and a log for each command. With MINUTES, no part begins
# or goes on after so many. JOBS fine-tunings run side by side. PYTHON is the interpreter.
set -u
OUT=${OUT:-runs/gpu} DATA=${DATA:-data} MINUTES=${MINUTES:-100000} JOBS=${JOBS:-14} PYTHON=${PYTHON:-python3}
BEGAN=$(date +%s)
mkdir -p "$OUT/logs"

left() { # minutes, for --max-minutes
    "$PYTHON" -c "print(round(max(0.1, $MINUTES - ($(date +%s) - $BEGAN) / 60), 2))"
}

run() { # a name for the log, then what comes after `recurrify`
    local name=$1 code
    shift
    echo "[$(($(date +%s) - BEGAN)) s] $name: $*"
    "$PYTHON" -m recurrify.cli "$@" --max-minutes "$(left)" >> "$OUT/logs/$name.log" 2>&1
    code=$?
    [ $code = 0 ] || echo "$name ended with $code: see $OUT/logs/$name.log"
}

sharing() { # what runs side by side shares the device instead of taking turns, where NVIDIA's MPS is installed
    # One that somebody has started already is for all.
    [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] && command -v nvidia-cuda-mps-control > /dev/null || { "$@"; return; }
    (
        pipes=$(mktemp -d)
        export CUDA_MPS_PIPE_DIRECTORY=$pipes CUDA_MPS_LOG_DIRECTORY=$pipes
        trap 'echo quit | CUDA_MPS_PIPE_DIRECTORY=$pipes nvidia-cuda-mps-control 2> /dev/null; rm -rf "$pipes"' EXIT
        trap 'exit 143' TERM
        nvidia-cuda-mps-control -d || unset CUDA_MPS_PIPE_DIRECTORY
        "$@"
    )
}

tests() { # those that need a GPU
    "$PYTHON" -m pytest -q -p no:cacheprovider -p no:benchmark -m gpu --tb=short tests/recurrence tests/attention tests/models tests/forecast \
        > "$OUT/logs/tests.log" 2>&1 || echo "tests ended with $?: see $OUT/logs/tests.log"
}

tune() { # settings of the kernels, about a minute each
    local one
    for one in head rsa relative; do
        "$PYTHON" "$(dirname "$0")/tune_$one.py" > "$OUT/logs/tune_$one.log" 2>&1 ||
            echo "tune_$one ended with $?: see $OUT/logs/tune_$one.log"
    done
}

speed() {
    local size=(--size gpt2 --kinds plain,carry --ways graphs) batch
    # Side by side, so that compiling takes once, not once for each batch.
    for batch in 16 32 64 1; do
        run "check-$batch" bench training "${size[@]}" --budgets 0.5,0.3 --batches $batch --only-checks --out "$OUT/checks/$batch" &
    done
    wait
    run training bench training "${size[@]}" --budgets 0.5,0.3 --batches 16,64 --out "$OUT/bench"
    run training-1 bench training "${size[@]}" --batches 1 --out "$OUT/bench"
    run generation bench generation "${size[@]}" --out "$OUT/bench"
    run profile bench profile "${size[@]}" --batches 16 --out "$OUT/bench"
    run evaluation bench evaluation "${size[@]}" --out "$OUT/bench"
    run lengths bench lengths "${size[@]}" --out "$OUT/bench"
    run peers bench peers "${size[@]}" --out "$OUT/bench"
}

kernels() {
    "$PYTHON" "$(dirname "$0")/bench_rsa.py" --out "$OUT/rsa_gpu.json" > "$OUT/logs/kernels.log" 2>&1 ||
        echo "kernels ended with $?: see $OUT/logs/kernels.log"
}

forecasts() {
    sharing run forecasts forecast table1 run --data "$DATA" --root "$OUT/table1" --precision bf16 --jobs "$JOBS"
}

experiments() { # how many side by side, then names and options
    local jobs=$1
    shift
    run "$1" experiment run "$@" --size small --root "$OUT/experiments" --books "$DATA/novels" --wiki "enwik8:$DATA/enwik8" \
        --jobs "$jobs"
}

protocol() { # alone, for its minutes and milliseconds are reported
    experiments 1 rsa-enwik8
}

small() { # as many as there are
    sharing experiments 5 rsa-small
}

rules() { # times are measured alone; then 120 small trainings, which wait for their launches
    experiments 1 slides-complexity
    sharing experiments 8 slides-lengths
}

mechanisms() {
    sharing experiments "$JOBS" mechanisms
}

questions() {
    sharing experiments "$JOBS" starts frozen tokens
}

unfamiliar() { # a second base
    sharing experiments "$JOBS" unfamiliar
}

rotary() {
    local model=()
    [ -d "$DATA/stories15M" ] && model=(--model "$DATA/stories15M")
    sharing experiments "$JOBS" rotary "${model[@]}"
}

PARTS="tests tune speed kernels forecasts protocol small rules mechanisms questions unfamiliar rotary"
for part in "$@"; do
    case " $PARTS " in
        *" $part "*) "$part" ;;
        *)
            echo "There is no part $part: there are ${PARTS// /, }." >&2
            exit 2
            ;;
    esac
done
