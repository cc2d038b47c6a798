#!/usr/bin/env bash
# Predictions and measurements: C1, C2 and C3 on 1, 2 and 4 ranks of this machine, three minutes
# on a quiet one.
#   benches/forecast.sh PATH-OF-HEADLONG > benches/results/MACHINE-forecast.jsonl
set -euo pipefail
headlong=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for ranks in 2 4; do
    "$headlong" bench tune --backend local --ranks $ranks -b 4K -e 16M \
        --seconds-per-size 0.03 --output "$folder/$ranks.json" >&2
done
for ranks in 1 2 4; do
    tuning=()
    if [ $ranks -gt 1 ]; then tuning=(--tuning "$folder/$ranks.json"); fi
    # Measured again for each: the speed of a virtual machine drifts.
    "$headlong" bench forecast --write "$folder/machine.toml" --ranks $ranks "${tuning[@]}" >&2
    for shape in C1 C2 C3; do
        "$headlong" bench forecast --shape $shape --ranks $ranks \
            --cluster "$folder/machine.toml" --seconds 4
    done
done
