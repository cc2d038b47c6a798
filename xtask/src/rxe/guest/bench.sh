# Sourced: the benches of messages over both devices, every element verified. Their times say
# nothing here.
benches() { # VERBS: of p2p
  for verb in $1; do
    check "bench p2p $verb" 90 \
      headlong bench p2p $verb --device rxa,rxb -b 8 -e 64K -f 32 -n 20 -w 2 $patient
  done
  check "bench all_reduce between two nodes over verbs" 90 \
    headlong bench all_reduce --backend verbs --ranks 4 --ranks-per-node 2 \
    -b 1K -e 16K -f 16 -n 10 -w 1 -c every $patient
  check "bench alltoall between two ranks over verbs" 90 \
    headlong bench alltoall --backend verbs --ranks 2 --ranks-per-node 1 \
    -b 1K -e 256K -f 256 -n 10 -w 1 -c every $patient
}
