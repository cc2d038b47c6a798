# Sourced: the command lines of docs/multi-node.md for two machines, as they stand there.

on_both() { # PROGRAM-OF-NODE-A PROGRAM-OF-NODE-B
    on node-b bash -ec "$2" >"$out/node-b.log" 2>&1 &
    local second=$! status=0
    on node-a bash -ec "$1" || status=$?
    wait "$second" || { status=$?; cat "$out/node-b.log"; }
    return "$status"
}

# torchrun's variables: PyTorch 1.13 on Python 3.11 takes the default of these two, 0, for None, and
# fails. With 1 it passes standard output on with a prefix.
with_torchrun() {
    export PET_REDIRECTS=1 PET_TEE=1
    local lines
    lines=$(page_block '### torchrun' 'torchrun --nnodes 2' | sed '1,/^# two machines/d')
    on_both "$lines" "${lines/--node_rank 0/--node_rank 1}"
}

# The second machine is lost when it has trained for some steps, and is back when the first one has
# trained some without it. Alone, that one would be done too soon: the run's log goes into a pipe,
# which has room for some twenty steps, and is not read until torchrun restarts the ranks.
with_a_lost_machine() {
    export PET_REDIRECTS=1 PET_TEE=1 PET_MONITOR_INTERVAL=1 LOGLEVEL=INFO
    local lines options="--steps 60 --snapshot-every 5 --set train.log_every=1"
    options+=" --log-json $state/log"
    lines=$(page_block '### torchrun' 'torchrun --nnodes 1:2' | sed '0,/^# two machines/d')
    lines=${lines/--resume/--resume $options}
    mkfifo "$state/log"
    exec 3<>"$state/log"
    /usr/bin/python3 -c 'import fcntl; fcntl.fcntl(3, fcntl.F_SETPIPE_SZ, 4096)'
    on node-b bash -ec "$lines" >"$out/node-b.log" 2>&1 &
    lost_and_back "$lines" >"$out/lost-and-back.log" 2>&1 &
    on node-a bash -ec "$lines"
    # The path is a variable of check, which called this.
    trained_alone_then_together "$log"
}

# lost_and_back LINES: what happens to the second machine, which starts with these lines again.
lost_and_back() {
    # Whatever happens, the run can log on.
    trap 'cat <&3 >/dev/null' EXIT
    until_logged '"step":12,'
    lose node-b
    until_logged '"event":"start"'
    until_logged '"event":"step"'
    on node-b bash -ec "$1" >"$out/node-b-again.log" 2>&1 &
    # If not, the run ends and has not trained together.
    wait_for "torchrun's restart" 60 restarts_for_a_machine || true
}

# torchrun has found the machine and begun to end the ranks: it may have ended some after the loss,
# too.
restarts_for_a_machine() {
    awk '/Detected 1 new nodes/ { found = 1 }
         found && /closing signal SIGTERM/ { ends = 1 }
         END { exit !ends }' "$log"
}

# until_logged WORDS: until a line of the run's log has them; not for ever.
until_logged() {
    local line=
    until [[ $line == *"$1"* ]]; do
        read -t 120 -r line || { echo "$1: not logged in time"; return 1; }
    done <&3
}

# Four ranks continued from a snapshot, then eight, from a later one, and no rank was refused.
trained_alone_then_together() {
    awk '/^ranks 0 to / { last = $4 }
         /^rank .* was refused/ { exit }
         /^resumed at step .* from a snapshot/ && last == "3:" { alone = $4 }
         /^resumed at step .* from a snapshot/ && last == "7:" && alone && $4 > alone { both = 1 }
         END { exit !both }' "$1"
}

# mpirun reaches the other machine by what stands in for ssh; as root it wants to be asked twice.
with_mpirun() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_plm_rsh_agent="$state/remote" OMPI_MCA_hwloc_base_binding_policy=none
    on node-a bash -ec "$(page_block '### Open MPI' 'mpirun -n 8' | sed '1,/^# several machines/d')"
}

by_hand() {
    local ranks='export HEADLONG_SECRET_FILE=$HOME/.headlong-secret HEADLONG_WORLD_SIZE=4
        export HEADLONG_MASTER_ADDR=node-a
        for rank in RANKS; do HEADLONG_RANK=$rank headlong train --config run.toml & done
        for process in $(jobs -p); do wait $process; done'
    on_both "${ranks/RANKS/0 1}" "${ranks/RANKS/2 3}"
}

launchers() {
    check torchrun with_torchrun
    headlong train --config run.toml --steps 60 >sixty.log 2>&1 || cat sixty.log
    expected=$(weights sixty.log) check 'a lost machine' with_a_lost_machine
    check mpirun with_mpirun
    check 'by hand' by_hand
}
