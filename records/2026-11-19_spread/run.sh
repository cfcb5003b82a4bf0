#!/usr/bin/env bash
# plan.md on a machine with a GPU that takes a few files at a time and is given back when it is idle.
#
#   run.sh packs FOLDER     keeps the packs of data in FOLDER; call it once for every few packs
#   run.sh start            unpacks them and begins; the trainings go on after this command has ended
#   run.sh wait SECONDS     waits that long or until all is done, then copies what there is to $OUT
#
# Everything lies below ${EOW_REST:-/tmp/eow-rest}. SEARCHED and NETWORK name other data and another model, for a trial at a tiny size.
set -euo pipefail
cd "$(dirname "$0")/../.."
rest=${EOW_REST:-/tmp/eow-rest}
mkdir -p "$rest/packs" "$rest/logs"
export EOW_DATA=$rest/data PYTHONUNBUFFERED=1 PYTHONPATH=$PWD

case $1 in
packs)
    cp "$2"/* "$rest/packs/"
    ;;
start)
    python "$rest/packs/unpack.py" "$rest/packs" "$EOW_DATA"
    setsid bash "$0" work >"$rest/logs/work.txt" 2>&1 </dev/null &
    ;;
work)
    for seed in 0 1; do
        python benchmarks/recipe.py records/2026-11-19_spread/variants.json --data "${SEARCHED:-cifar100}" --model "${NETWORK:-resnet50}" \
            --epochs 30 --branch 0.8334 --holdout 0.118 --allow-unofficial --seed "$seed" --out "$rest/logs/spread-$seed.json" \
            >"$rest/logs/spread-$seed.txt" 2>&1 || true
    done
    touch "$rest/done"
    ;;
wait)
    for ((second = 0; second < $2; second++)); do
        [ -e "$rest/done" ] && break
        sleep 1
    done
    cp "$rest"/logs/* "$OUT"/
    tail -n 3 "$rest"/logs/*.txt
    ;;
*)
    sed -n 2,8p "$0"
    exit 2
    ;;
esac
