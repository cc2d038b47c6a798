#!/usr/bin/env bash
# The step `clusters`, inside namespaces of its own: all.sh HEADLONG OUT PART..., a part being
# `launchers` or `slurm`. Prints `ok` or `FAIL` for each case, and leaves logs in the folder OUT.
# shellcheck disable=SC2317 # What is called by a name in a variable is reached.
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
page=$(cd "$scripts/../../../.." && pwd)/docs/multi-node.md
export PATH=${1%/*}:$PATH:/usr/sbin:/sbin
out=$2; shift 2
# The first process of its namespace hears no signal that it does not ask for.
trap 'exit 143' TERM INT HUP
failed=0
ok() { echo "ok    $*"; }
bad() { failed=1; echo "FAIL  $*"; }

# page_block HEADING WORDS: that block of the page below the heading that has the words.
page_block() {
    awk -v heading="$1" -v words="$2" '
        /^#/ && !fenced { below = ($0 == heading) }
        /^```/ { fenced = !fenced; if (!fenced && below && index(block, words)) printf "%s", block
                 block = ""; next }
        fenced { block = block $0 "\n" }' "$page"
}

# weights LOG: of the last run in it.
weights() { sed -nE 's/^(\[default0\]:)?weights //p' "$1" | tail -n 1; }

# check NAME COMMAND...: it trains to the weights of one process.
check() {
    local name=$1 begun=$SECONDS log; shift
    log=$out/${name// /-}.log
    # Not behind `||`: there, commands that fail would not end it.
    set +e
    (set -e; "$@") >"$log" 2>&1
    local status=$?
    set -e
    if [ "$status" != 0 ]; then
        bad "$name, status $status"
    elif [ "$(weights "$log")" != "$expected" ]; then
        bad "$name: weights $(weights "$log"), those of one process $expected"
    else
        ok "$name, $((SECONDS - begun)) s"; return
    fi
    tail -n 20 "$log"
}

# shellcheck source=machines.sh
. "$scripts/machines.sh"
# shellcheck source=launchers.sh
. "$scripts/launchers.sh"
# shellcheck source=slurm.sh
. "$scripts/slurm.sh"

# What the page expects of its reader: a configuration, data, a secret.
reader() {
    export HOME=$out
    (umask 077; head -c 32 /dev/urandom | base64 >"$HOME/.headlong-secret")
    cp "$scripts/run.toml" .
    headlong train --config run.toml >one.log 2>&1 || { cat one.log; return 1; }
    sed -i "s/^enabled = true/enabled = false/" run.toml
    local rows=headlong-out/synthetic-data
    printf '\n[data]\ntrain = ["%s"]\nvalid = ["%s"]\n' $rows/train.txt $rows/valid.txt >>run.toml
    expected=$(weights one.log)
    echo "weights of one process: $expected"
}

export TMPDIR=$state
cd "$out"
machines
cable 5 1
reader
for part in "$@"; do "$part"; done
unplug
exit $failed
