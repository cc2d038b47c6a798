#!/bin/sh
# Runs what cannot be tested without a GPU, on a machine with one, in the order in which a failure
# says most: conformance, op tests, equality of whole runs, sanitizers, benches, PyTorch next to
# ours. Nothing is installed.
#
#   ./run.sh [OUT] [STAGE...]     OUT (default ./out) keeps a log for each stage; without STAGE:
#                                 all of them
#
# REHEARSE=DIR tries the stage `peers` where there is no GPU: DIR is a software device
# (`cargo xtask softcuda`), PyTorch computes on the CPU, all is small, and no number means anything.
#
# Needs: an NVIDIA driver; NVRTC and cuBLASLt of CUDA 13 (a toolkit, or the wheels that PyTorch
# brings along), because tests compile small kernels of their own; compute-sanitizer for the stage
# `sanitizers`, else that stage says that it is skipped; for the stage `peers` a python with PyTorch
# 2.11 for CUDA 13 (PYTHON, python3 unless set), likewise.
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/out}
[ $# -gt 0 ] && shift
stages=${*:-"doctor conformance ops equality replays sanitizers benches peers"}
mkdir -p "$out"
out=$(cd "$out" && pwd)
# Compiled kernels stay with the logs; a software device that the environment names is not a GPU.
export XDG_CACHE_HOME="$out/cache" REQUIRE=cuda
unset HEADLONG_CUDA_LIBS
[ -n "$REHEARSE" ] && export HEADLONG_CUDA_LIBS="$REHEARSE" REQUIRE=hostcuda
mkdir -p "$XDG_CACHE_HOME"
# Programs travel packed. A folder that cannot be written to is copied first.
if ls "$here"/tests/*.gz >/dev/null 2>&1; then
    [ -w "$here/tests" ] || { cp -r "$here" "$out/bundle" && here=$out/bundle; }
    gunzip -f "$here"/tests/*.gz || exit 1
fi
failed=""

# run STAGE LIMIT_S COMMAND...: keeps the output, and says how it ended.
run() {
    stage=$1 limit=$2
    shift 2
    start=$(date +%s)
    (cd "$out" && timeout "$limit" "$@") >>"$out/$stage.log" 2>&1
    code=$?
    end=$(date +%s)
    if [ $code = 0 ]; then word=passed; else word="FAILED ($code)" failed="$failed $stage"; fi
    echo "$stage: $word in $((end - start)) s: $(basename "$1")"
}

tests() {
    for program in "$here"/tests/*; do
        case "$(basename "$program")" in device-conformance) continue ;; esac
        echo "$program"
    done
}

# The tests of a program that are about CUDA: all where its name says so, else those that do.
filter() {
    case "$(basename "$1")" in *cuda*) ;; *) echo cuda ;; esac
}

for stage in $stages; do
    : >"$out/$stage.log"
    case $stage in
    doctor)
        nvidia-smi >>"$out/doctor.log" 2>&1
        run doctor 60 "$here/headlong" doctor
        ;;
    conformance)
        program=$here/tests/device-conformance
        [ -x "$program" ] && run conformance 300 "$program" --test-threads 1
        ;;
    ops)
        # shellcheck disable=SC2046 # no word where all tests are meant
        for program in $(tests); do
            run ops 600 "$program" $(filter "$program") --test-threads 1
        done
        ;;
    equality)
        # Serial, overlapped and captured runs have the same weights, bit for bit.
        for schedule in serial overlapped captured; do
            run equality 300 "$here/headlong" train --preset tiny --device cuda \
                --kernels "$here/kernels" --schedule $schedule \
                --output-dir "$out/equality-$schedule"
        done
        if grep -h -o 'weights [0-9a-f]*' "$out/equality.log" | sort -u |
            awk 'END { exit NR != 1 }'; then
            echo "equality: the three schedules have the same weights"
        else
            echo "equality: the schedules' weights differ, or were not printed"
            failed="$failed equality"
        fi
        ;;
    replays)
        # Steps of a small batch take well under a millisecond: a minute is 100,000 replays and
        # more.
        run replays 600 "$here/headlong" bench iteration --device cuda --shape C2 --row-cap 100000 \
            --schedule captured --batch-size 512 --seconds 60
        ;;
    sanitizers)
        tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
        if [ -z "$tool" ]; then
            echo "sanitizers: skipped, because compute-sanitizer is not installed"
            continue
        fi
        for check in memcheck racecheck initcheck synccheck; do
            for program in $(tests); do
                # shellcheck disable=SC2046 # no word where all tests are meant
                run sanitizers 600 "$tool" --tool $check --error-exitcode 9 "$program" \
                    $(filter "$program") --test-threads 1
            done
        done
        ;;
    benches)
        run benches 300 "$here/headlong-benches" --only cuda_embedding --seconds 10
        for batch in 512 6912 65536; do
            for schedule in serial overlapped captured; do
                run benches 300 "$here/headlong" bench iteration --device cuda --shape C1 \
                    --row-cap fit --dtype bf16 --schedule $schedule --batch-size $batch \
                    --seconds 10 --json
            done
        done
        ;;
    peers)
        # PyTorch and ours on the same GPU, in turn; the full tables take 96 GB, the small ones
        # 2.6.
        python=${PYTHON:-python3}
        if [ -n "$REHEARSE" ]; then
            run peers 3600 "$python" "$here/peers/gpu_compare.py" \
                --headlong "$here/headlong" --smoke cuda
        elif ! "$python" -c 'import torch; assert torch.cuda.is_available()' \
            >>"$out/peers.log" 2>&1; then
            echo "peers: skipped, because $python has no PyTorch that sees the GPU: set PYTHON"
            continue
        else
            for cap in 648000 40000000; do
                echo "tables of $cap rows at most" >>"$out/peers.log"
                run peers 3600 "$python" "$here/peers/gpu_compare.py" \
                    --headlong "$here/headlong" --shape C1 --row-cap $cap \
                    --batch-size 512 6912 65536 --rounds 3 --seconds 5
            done
        fi
        grep -e '^tables of' -e ': ratio ' "$out/peers.log"
        ;;
    *) echo "$stage: no such stage" && failed="$failed $stage" ;;
    esac
done
[ -z "$failed" ] && echo "gpu-bundle: all passed; logs in $out" && exit 0
echo "gpu-bundle: failed:$failed; logs in $out"
exit 1
