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

# The second machine is lost when it has trained for some steps.
with_a_lost_machine() {
    export PET_REDIRECTS=1 PET_TEE=1
    local lines
    lines=$(page_block '### torchrun' 'torchrun --nnodes 1:2' | sed '0,/^# two machines/d')
    lines=${lines/--resume/--resume --snapshot-every 5}
    on node-b bash -ec "$lines" >"$out/node-b.log" 2>&1 &
    (wait_for 'a snapshot' 60 on node-b test -d /dev/shm/headlong/step-000000010; lose node-b) &
    on node-a bash -ec "$lines"
    # The path is a variable of check, which called this.
    grep -q "from a snapshot" "$log"
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
    check 'a lost machine' with_a_lost_machine
    check mpirun with_mpirun
    check 'by hand' by_hand
}
