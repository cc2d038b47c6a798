# Sourced: Slurm, both nodes with a slurmd and a munged of their own, node-a with the controller,
# too; and the scripts of docs/multi-node.md.

slurm_conf() {
    mkdir "$state/slurm"
    cat >"$SLURM_CONF" <<EOC
ClusterName=clusters
SlurmctldHost=node-a
SlurmUser=root
SlurmdUser=root
# A job that is requeued waits so long, in seconds: the least that is allowed.
AuthInfo=cred_expire=5
# Packets are lost, those of a handshake, too.
TCPTimeout=20
MessageTimeout=60
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
# The nodes have the processors that this file says.
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
StateSaveLocation=$state/slurm
SlurmdSpoolDir=$state/slurm/%n
SlurmctldPidFile=$state/slurm/pid
SlurmdPidFile=$state/slurm/%n.pid
SlurmctldLogFile=$out/slurmctld.log
SlurmdLogFile=$out/slurmd-%n.log
NodeName=node[1-2] CPUs=64
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
EOC
}

start_slurm() {
    export SLURM_CONF=$state/slurm/slurm.conf
    slurm_conf
    head -c 1024 /dev/urandom >"$state/munge.key"
    chmod 400 "$state/munge.key"
    local node
    for node in node-a node-b; do
        # `--force`: it does not run as root otherwise.
        on "$node" munged --force --foreground --key-file "$state/munge.key" \
            --log-file /run/munge/log --seed-file /run/munge/seed >"$out/munged-$node.log" 2>&1 &
        wait_for "munged of $node" 60 on "$node" test -S /run/munge/munge.socket.2
    done
    on node-a slurmctld -D >"$out/slurmctld.out" 2>&1 &
    on node-a slurmd -D -N node1 >"$out/slurmd-node1.out" 2>&1 &
    on node-b slurmd -D -N node2 >"$out/slurmd-node2.out" 2>&1 &
    wait_for "both nodes" 60 both_idle
}

both_idle() { [ "$(on node-a sinfo -h -t idle -o %D)" = 2 ]; }

# submit NAME WORDS: the page's script with these words, as a job of that name. Sets `job`.
submit() {
    rm -rf "$HOME/run"
    page_block '### Slurm' "$2" >"$1.sh"
    job=$(on node-a sbatch --parsable --job-name "$1" --output "$1.out" "$1.sh")
}
state_of() { on node-a scontrol show job -o "$1" | sed -n 's/.* JobState=\([A-Z]*\) .*/\1/p'; }
is() { [ "$(state_of "$1")" = "$2" ]; }
# ends_as JOB STATE
ends_as() { wait_for "job $1 as $2" 180 is "$1" "$2"; }
has() { grep -q "$1" "$2"; }
# until_saved NAME: until its first checkpoint is there.
until_saved() { wait_for "a checkpoint of $1" 120 has '^step.* checkpoint' "$1.out"; }
node2() { on node-a scontrol update nodename=node2 reason=test state="$1"; }

# Two tasks and two: node1 has the ranks 0 and 1.
interactive() {
    on node-a srun -N 2 -n 4 headlong train --config run.toml
}

# One that only evaluates, on the other machine than rank 0.
evaluating() {
    on node-a srun -N 2 -n 3 --distribution=block --ntasks-per-node=2 \
        headlong train --config run.toml --eval-every 10 --eval-processes 1
}

cancelled() {
    submit cancelled --resume
    until_saved cancelled
    on node-a scancel "$job"
    ends_as "$job" CANCELLED
    cat cancelled.out
    has '^stopped by SIGTERM at step' cancelled.out
    # What eight ranks have begun, one process ends.
    on node-a headlong train --config run.toml --checkpoint-dir "$HOME/run" --resume
}

# The same job starts again by itself.
requeued() {
    submit requeued --resume
    until_saved requeued
    on node-a scontrol requeue "$job"
    wait_for "the job again" 180 has '^resumed at step' requeued.out
    cp requeued.out requeued-once.out
    has '^stopped by SIGTERM at step' requeued-once.out
    ends_as "$job" COMPLETED
    cat requeued.out
}

# A node that drains lets its job end, and gets no other until it is back.
drained() {
    submit first '=1 headlong train'
    local first=$job
    wait_for "the first job" 120 has '^plan' first.out
    node2 drain
    submit second '=1 headlong train'
    ends_as "$first" COMPLETED
    is "$job" PENDING
    node2 resume
    ends_as "$job" COMPLETED
    [ "$(weights first.out)" = "$(weights second.out)" ]
    cat first.out
}

slurm() {
    local name
    export HEADLONG_SECRET_FILE=$HOME/.headlong-secret
    start_slurm || { bad "Slurm does not start"; tail -n 5 "$out"/slurm*.log; return; }
    for name in interactive evaluating cancelled requeued drained; do
        check "slurm $name" "$name"
    done
}
