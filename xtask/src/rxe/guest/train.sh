# Sourced: `headlong train` on two nodes of two ranks. A node sees its own device alone, and a name
# of its own for the machine's boot. Emulated, everything is slow: few steps, and one evaluation at
# the end, because each writes a checkpoint of what all ranks have.
few_rows="--set synthetic.train_rows=3072 --set synthetic.valid_rows=512"
: ${options:=--preset tiny --steps 24 $few_rows --set sum_blocks=4 --set eval.every=0}
digest() { sed -n 's/^weights //p' "$1"; }
as_rank() { # RANK NODE HIDDEN-DEVICE: one rank over verbs
  for file in /sys/class/infiniband_verbs/uverbs*/ibdev; do
    [ "$(cat $file)" = "$3" ] && nic=${file%/ibdev} \
      && mount --bind /dev/null /dev/infiniband/${nic##*/}
  done
  echo "node $2" >/tmp/node$2.$1; mount --bind /tmp/node$2.$1 /proc/sys/kernel/random/boot_id
  export HEADLONG_RANK=$1 HEADLONG_WORLD_SIZE=4
  export HEADLONG_MASTER_ADDR=127.0.0.1 HEADLONG_MASTER_PORT=29700
  exec timeout $((rxe_limit * 3 / 4)) headlong train $options --transport verbs \
    --set comm.verbs.timeout=19 --output-dir ${folder:-/tmp/verbs}
}
over_verbs() { # all four ranks, of a run with $options
  export options; before=$(sent va)
  for rank in 3 2 1 0; do
    case $rank in 0|1) node=0; hidden=rxb;; *) node=1; hidden=rxa;; esac
    unshare -m sh -c ". /test/train.sh; as_rank $rank $node $hidden" \
      >/tmp/verbs$rank.out 2>/tmp/verbs$rank.err &
  done
  wait
  grep -hE 'verbs|ranks' /tmp/verbs0.err | head -5
  grep -q 'between nodes by verbs' /tmp/verbs0.err \
    || { echo "not over verbs:"; tail -5 /tmp/verbs?.err; return 1; }
}
same_weights() { # WHAT DIGEST: as those of the run before
  echo "weights of $1 $2, over verbs $(digest /tmp/verbs0.out), packets $(($(sent va) - before))"
  [ -n "$2" ] && [ "$2" = "$(digest /tmp/verbs0.out)" ] || { tail -n 4 /tmp/verbs?.err; return 1; }
}
training() {
  timeout $rxe_limit headlong train $options --ranks 4 --set comm.ranks_per_node=2 \
    --output-dir /tmp/local >/tmp/local.out 2>/tmp/local.err \
    || { cat /tmp/local.err; return 1; }
  over_verbs && same_weights local $(digest /tmp/local.out)
}
# The same command with a device for each rank: the captured step drives the NICs itself, and
# inside a node NCCL (of the software device) brings what peers have. `xtask/src/rxe/device.rs` ran
# it as threads of one process, has compiled its kernels so, and says what it is called with
# (rxe_options, commas for spaces) and what weights came out (rxe_weights).
training_on_devices() {
  options="$(echo "$rxe_options" | tr , ' ') --set comm.deadline_s=300"; export folder=/tmp/devices
  export HEADLONG_CUDA_LIBS=/test/softcuda SOFTCUDA_DEVICES=2 SOFTCUDA_TIMEOUT_S=300
  export XDG_CACHE_HOME=/test/cache
  begin=$(cut -d. -f1 /proc/uptime)
  over_verbs || return 1
  echo "$(($(cut -d. -f1 /proc/uptime) - begin)) s"
  same_weights "threads of one process" $rxe_weights
}
