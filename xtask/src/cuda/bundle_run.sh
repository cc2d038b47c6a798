#!/bin/sh
# Runs what cannot be tested without a GPU, on a machine with one, in three calls of a few minutes:
# what is alive and right, where time goes, what may be claimed. Nothing is installed.
#
#   ./run.sh OUT [CALL|STAGE...]     CALL: right (420 s), time (480 s) or claims (480 s); without
#                                    any, all three. OUT is a folder: it gets one archive, packed
#                                    again after every command, and summary.txt
#
# A stage has seconds of its own. What they do not suffice for is cut, said so, and no failure.
#
# LIBS=DIR      where NVRTC, cuBLASLt and NCCL are looked for; unset: toolkits, python's wheels
# PYTHON=FILE   a python with PyTorch for the stage `peers` (python3)
# REHEARSE=DIR  tries all of it where there is no GPU: DIR is a software device (`cargo xtask
#               softcuda`); all is small, and no number means anything
#
# Needs: an NVIDIA driver; NVRTC and cuBLASLt of CUDA 12 or 13, because tests compile small kernels
# of their own. Where ncu, compute-sanitizer or PyTorch is missing, its stage says that it is
# skipped.
unset CDPATH
calls="right time claims"
right="doctor floors conformance ops losses equality steps"
time="traces embedding profile sanitizers"
claims="replays peers"

refuse() {
    [ -n "$1" ] && echo "run.sh: $1" >&2
    echo "usage: run.sh OUT [CALL|STAGE...]
  OUT     a folder for the archive of logs and summary.txt
  CALL    $calls; without any, all
  STAGE   $right
          $time
          $claims
What it does, and its variables: the head of this file." >&2
    exit 2
}

is_known() {
    case $1 in "" | *" "*) return 1 ;; esac
    case " $calls $right $time $claims " in *" $1 "*) ;; *) return 1 ;; esac
}

case $1 in
"") refuse "no folder is named" ;;
-h | --help) refuse ;;
-*) refuse "$1: no such option" ;;
esac
is_known "$1" && refuse "$1 is a call or a stage: first comes OUT, a folder (./$1 may be one)"
named=$1
shift
for each in "$@"; do is_known "$each" || refuse "$each: no such call or stage"; done

# give_up WHY: before any stage.
give_up() {
    echo "run.sh: $1: nothing was run" >&2
    exit 1
}
here=$(cd "$(dirname "$0")" && pwd) || give_up "the folder of $0 cannot be entered"
mkdir -p "$named" && out=$(cd "$named" && pwd) && : >>"$out/summary.txt" ||
    give_up "$named is no folder to write to"
work=$(mktemp -d) || give_up "there is no temporary folder"
trap 'rm -rf "$work"' EXIT
logs=$work/gpu-bundle
mkdir -p "$logs" "$work/cache" "$work/tests" || give_up "$work cannot be written to"
program=$here/headlong
export XDG_CACHE_HOME="$work/cache" REQUIRE=cuda
unset HEADLONG_CUDA_LIBS
[ -n "$LIBS" ] && export HEADLONG_CUDA_LIBS="$LIBS"
[ -n "$REHEARSE" ] && export HEADLONG_CUDA_LIBS="$REHEARSE" REQUIRE=hostcuda
python=${PYTHON:-python3}
if [ -e "$here/headlong.xz" ]; then
    program=$work/headlong
    { xz -dc "$here/headlong.xz" 2>/dev/null ||
        "$python" -c 'import lzma, sys; sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())' \
            "$here/headlong.xz"; } >"$program" && chmod +x "$program" ||
        give_up "$here/headlong.xz cannot be unpacked"
fi
export HEADLONG_PROGRAM="$program"
# One archive of all test programs: they share most of what they hold.
if [ -e "$here/tests.tar.xz" ]; then
    tar -xJf "$here/tests.tar.xz" -C "$work/tests" 2>/dev/null ||
        "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
            "$here/tests.tar.xz" "$work/tests" || give_up "$here/tests.tar.xz cannot be unpacked"
fi
failed="" cut="" name=gpu-bundle running="" before=""

say() { echo "$*" | tee -a "$out/summary.txt"; }

# has_failed and was_cut NAME: once each.
has_failed() { case "$failed " in *" $1 "*) ;; *) failed="$failed $1" ;; esac }
was_cut() { case "$cut " in *" $1 "*) ;; *) cut="$cut $1" ;; esac }

# Whole at any time, should this be killed.
pack() {
    # Which algorithms of matrix products were taken, and in what time.
    cp "$XDG_CACHE_HOME/headlong/algorithms.txt" "$logs" 2>/dev/null
    tar -czf "$out/.gpu-bundle.tar.gz" -C "$work" gpu-bundle &&
        mv -f "$out/.gpu-bundle.tar.gz" "$out/gpu-bundle.tar.gz" && return 0
    case "$failed " in *" archive "*) ;; *) say "archive: FAILED: $out takes none" ;; esac
    has_failed archive
    return 1
}

# stopped CODE: by a signal. What runs ends first; `timeout` passes the signal on to all of it.
stopped() {
    trap '' HUP INT TERM
    if [ -n "$running" ]; then
        kill "$running" 2>/dev/null
        wait "$running" 2>/dev/null
    fi
    say "$name: stopped by a signal"
    pack
    exit "$1"
}
trap 'stopped 129' HUP
trap 'stopped 130' INT
trap 'stopped 143' TERM

# stage NAME SECONDS: what follows belongs to it.
stage() {
    name=$1 ends=$(($(date +%s) + $2)) seen=0
    : >"$logs/$name.log"
}

# run COMMAND...: keeps the output, and says how it ended.
run() {
    begun=$(date +%s)
    left=$((ends - begun))
    what=$(basename "$1")
    [ $# -gt 1 ] && what="$what $2"
    if [ $left -lt 2 ]; then
        say "$name: cut: no time for $what" && was_cut "$name"
        return 0
    fi
    echo "\$ $*" >>"$logs/$name.log"
    lines=$(wc -l <"$logs/$name.log")
    # In the background, because a signal waits for what is in the foreground.
    (cd "$logs" && exec timeout -k 5 "$left" "$@") >>"$logs/$name.log" 2>&1 &
    running=$!
    wait "$running"
    code=$?
    running=""
    took=$(($(date +%s) - begun))
    if [ $code = 0 ]; then
        say "$name: passed in $took s: $what"
    elif [ $took -ge $left ] && { [ $code = 124 ] || [ $code = 137 ]; }; then
        say "$name: cut after $took s: $what" && was_cut "$name"
    else
        now=$(why)
        if [ "$name $now" = "$before" ]; then now="as before"; else before="$name $now"; fi
        say "$name: FAILED ($code) in $took s: $what: $now" && has_failed "$name"
    fi
    pack
    return $code
}

# side_by_side FILE: a name and a command on each line, run as many at a time as there are
# processors; each has a log of its name. Tests of one GPU do not disturb each other, timings would.
side_by_side() {
    cat >"$work/one.sh" <<'ONE'
log=$1.log
shift
"$@" >"$log" 2>&1 && echo "passed: $log" && exit 0
echo "error: $log: $(awk '/panicked at/ { getline; print; exit }' "$log" | cut -c 1-200)"
exit 1
ONE
    run xargs -a "$1" -P "$(nproc)" -L 1 sh "$work/one.sh" ||
        grep '^error: ' "$logs/$name.log" | sed "s/^/$name: /" | tee -a "$out/summary.txt"
}

# why: of what the last command said, the first error, or its last line.
why() {
    tail -n +$((lines + 1)) "$logs/$name.log" | awk '
        /panicked at/ { getline; found = $0; exit }
        /^error|^[a-z]*: error|Error: / { found = $0; exit }
        NF { last = $0 }
        END { print found == "" ? last : found }' | cut -c 1-400
}

# small REHEARSED MEANT: which of both applies.
small() { if [ -n "$REHEARSE" ]; then echo "$1"; else echo "$2"; fi; }

# The tests of a program that are about CUDA: all where its name says so, else those that do.
filter() {
    case "$1" in *cuda*) ;; *) echo cuda ;; esac
}

steps() {
    for batch in $(small 64 "65536 6912"); do
        for schedule in serial overlapped captured; do
            run "$program" bench iteration --device cuda --shape C1 \
                --row-cap "$(small 100 fit)" --dtype bf16 --schedule $schedule \
                --batch-size "$batch" --threads "$(small 1 "$(nproc)")" \
                --seconds "$(small 0 5)" --json
            say "$name: C1, batch $batch, $schedule: $(grep -o '"samples_per_s":[0-9.]*' \
                "$logs/$name.log" | tail -n 1)"
        done
    done
}

equality() {
    # Serial, overlapped and captured runs have the same weights, bit for bit.
    for precision in f32 bf16; do
        for schedule in serial overlapped captured; do
            run "$program" train --preset tiny --device cuda --kernels "$here/kernels" \
                --precision $precision --schedule $schedule --steps "$(small 8 2000)" \
                --output-dir "$work/equality-$precision-$schedule"
        done
        same_weights "$precision"
    done
}

# same_weights WHAT: all runs that the stage's log holds since it was last asked have one digest.
same_weights() {
    all=$(grep -o 'weights [0-9a-f]\{16,\}' "$logs/$name.log" | tail -n +$((seen + 1)))
    runs=$(echo "$all" | grep -c weights)
    seen=$((seen + runs))
    found=$(echo "$all" | sort -u)
    case "$runs $(echo "$found" | grep -c weights)" in
    [01]\ *)
        say "$name: $1: nothing to compare, because $runs runs came to a digest"
        case "$cut " in *" $name "*) ;; *) has_failed "$name" ;; esac
        ;;
    *\ 1) say "$name: $1: one digest of $runs runs: $found" ;;
    *)
        differ=$(echo "$found" | sed 's/weights//' | tr -d '\n')
        say "$name: $1: digests of $runs runs differ:$differ" && has_failed "$name"
        ;;
    esac
}

replays() {
    # Very many replays: their weights at the end are those of steps enqueued one by one.
    for schedule in overlapped captured; do
        run "$program" train --preset tiny --device cuda --kernels "$here/kernels" \
            --batch-size 512 --eval-every 0 --schedule $schedule \
            --steps "$(small 16 100000)" --output-dir "$work/replays-$schedule"
    done
    same_weights replays
}

traces() {
    for schedule in serial captured; do
        run "$program" train --preset tiny --device cuda --precision bf16 --time \
            --batch-size "$(small 16 65536)" --steps "$(small 2 8)" --eval-every 0 \
            --schedule $schedule \
            --set "synthetic.train_rows=$(small 2_000 800_000)" \
            --set "synthetic.valid_rows=$(small 500 50_000)" --set model.dim=128 \
            --set 'model.bottom=[512,256,128]' --set 'model.top=[1024,1024,512,256,1]' \
            --trace "$logs/step-$schedule.json" --output-dir "$work/traces-$schedule"
    done
    # Kernel by kernel: the table of all, in the log.
    tool=$(command -v nsys || ls /usr/local/cuda/bin/nsys 2>/dev/null)
    [ -z "$tool" ] && say "$name: without nsys, which is not installed" && return
    profiled "$tool" profile --trace=cuda --stats=true --output "$work/nsys"
}

# profiled TOOL...: one step after the other, under a tool.
profiled() {
    run "$@" "$program" bench iteration --device cuda --shape C1 --row-cap 1000000 \
        --dtype bf16 --schedule serial --batch-size 65536 --seconds 0
}

profile() {
    tool=$(command -v ncu || ls /usr/local/cuda/bin/ncu 2>/dev/null)
    [ -z "$tool" ] && say "$name: skipped, because ncu is not installed" && return
    # Once without it: algorithms are searched then, and no trial of them is profiled.
    profiled env
    # Clocks as they are: what is measured is what runs. So many launches of what has such a name.
    for kernels in 2:lookup 2:update '4:dot_|tensor' 3:sort_pass 1:find_chunks \
        '16:gemm|nvjet|cutlass'; do
        profiled "$tool" --clock-control none --kernel-name "regex:${kernels#*:}" \
            --launch-count "${kernels%%:*}" --section SpeedOfLight --section Occupancy \
            --section MemoryWorkloadAnalysis --section MemoryWorkloadAnalysis_Tables \
            --section WarpStateStats --section LaunchStats
    done
}

sanitizers() {
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    [ -z "$tool" ] && say "$name: skipped, because compute-sanitizer is not installed" && return
    # A small test of every file of kernels: those that CI runs under g++'s sanitizers.
    for check in memcheck racecheck; do
        while read -r program filters; do
            echo "$check-$program $tool --tool $check --error-exitcode 9" \
                "$work/tests/$program $filters --test-threads 1"
        done <"$here/sanitizers.txt" >"$work/$check"
        side_by_side "$work/$check"
    done
}

peers() {
    # PyTorch and ours on the same GPU, in turn: with tables of 96 GB, or 53 on a GPU of 80. Its
    # compiler's most thorough mode has not ended within 100 s.
    memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null |
        head -n 1)
    if [ -n "$REHEARSE" ]; then
        run "$python" "$here/peers/gpu_compare.py" --headlong "$program" --smoke cuda
    elif ! "$python" -c 'import torch; assert torch.cuda.is_available()' \
        >>"$logs/peers.log" 2>&1; then
        say "peers: skipped, because $python has no PyTorch that sees the GPU: set PYTHON"
    else
        run "$python" "$here/peers/gpu_compare.py" --headlong "$program" --shape C1 \
            --row-cap "$([ "${memory:-0}" -ge 120000 ] && echo 40000000 || echo 20000000)" \
            --batch-size 65536 6912 --rounds 1 --seconds 5 --limit 85 \
            --mode default
    fi
    grep -e ': ratio ' "$logs/peers.log" | tee -a "$out/summary.txt"
}

one() {
    case $1 in
    doctor)
        stage doctor 20
        nvidia-smi >>"$logs/doctor.log" 2>&1
        # Tests alone read it.
        unset HEADLONG_PROGRAM
        run "$program" doctor
        export HEADLONG_PROGRAM="$program"
        ;;
    floors)
        stage floors 60
        run "$work/tests/device-cuda_floors" --ignored --nocapture
        # Each product of C1 with each epilogue.
        run "$work/tests/device-cuda_products" --ignored --nocapture
        ;;
    conformance)
        # Every rule that the driver keeps otherwise is a line that begins with `fact:`.
        stage conformance 60
        run "$work/tests/device-conformance" --test-threads 1 --nocapture
        grep '^fact:' "$logs/conformance.log" | tee -a "$out/summary.txt"
        ;;
    ops)
        stage ops 120
        for program in "$work"/tests/*; do
            file=$(basename "$program")
            case "$file" in
            device-conformance | device-cuda_floors | device-cuda_products | trainer-cuda_run) ;;
            *) echo "$file $program $(filter "$file") --test-threads 1" ;;
            esac
        done >"$work/ops"
        side_by_side "$work/ops"
        ;;
    losses)
        # The first losses are those of the processor.
        stage losses 40
        run "$work/tests/trainer-cuda_run" the_first_losses --test-threads 1
        ;;
    equality) stage equality 50 && equality ;;
    steps) stage steps 90 && steps ;;
    traces) stage traces 60 && traces ;;
    embedding)
        stage embedding 40
        run "$program" bench embedding --device cuda --json --tables "$(small 2 10)" \
            --rows "$(small 500 1680000)" --dim 128 --ids "$(small 128 104857)" --alpha 1.05 \
            --optimizer sgd --seconds "$(small 0 5)"
        ;;
    profile) stage profile 200 && profile ;;
    sanitizers) stage sanitizers 180 && sanitizers ;;
    replays) stage replays 120 && replays ;;
    peers) stage peers 360 && peers ;;
    esac
}

[ $# = 0 ] && set -- right time claims
say "gpu-bundle: begun at $(date -u '+%Y-%m-%d %H:%M:%S') UTC: $*"
pack || exit 1
for call in "$@"; do
    case $call in
    right) stages=$right ;;
    time) stages=$time ;;
    claims) stages=$claims ;;
    *) stages=$call ;;
    esac
    for each in $stages; do one "$each"; done
done
name=gpu-bundle
pack
if [ -n "$failed" ]; then
    [ -n "$cut" ] && say "gpu-bundle: cut:$cut"
    say "gpu-bundle: failed:$failed"
    exit 1
fi
say "gpu-bundle: nothing failed${cut:+, cut:$cut}"
