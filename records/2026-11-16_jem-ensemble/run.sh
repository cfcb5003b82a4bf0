#!/usr/bin/env bash
# What is left of plan.md, on a machine with a GPU that takes a few files at a time and is given back when it is idle.
#
#   run.sh packs FOLDER     keeps the packs of data in FOLDER; call it once for every few packs
#   run.sh start            unpacks them and begins; the trainings go on after this command has ended
#   run.sh wait SECONDS     waits that long or until all is done, then copies what has ended to $OUT, with the logs
#
# Everything lies below ${EOW_REST:-/tmp/eow-rest}. SETTINGS="--set ..." is added to every bench, for a trial at a tiny size.
set -euo pipefail
cd "$(dirname "$0")/../.."
rest=${EOW_REST:-/tmp/eow-rest}
mkdir -p "$rest/packs" "$rest/logs"
export EOW_DATA=$rest/data PYTHONUNBUFFERED=1

bench() {  # NAME SIZE METHOD SEEDS
    sed "s/^seeds = .*/seeds = $4/" benchmarks/cifar100.toml >"$rest/$1.toml"
    python -m eow bench "$rest/$1.toml" --size "$2" --only "$3" --jobs 1 --out "$rest/$1" --set data.allow_unofficial=true \
        ${SETTINGS:-} >"$rest/logs/$1.txt" 2>&1 || echo "$1 ended with $?" >>"$rest/logs/failed.txt"
}

case $1 in
packs)
    cp "$2"/* "$rest/packs/"
    ;;
start)
    python "$rest/packs/unpack.py" "$rest/packs" "$EOW_DATA"
    setsid bash "$0" work >"$rest/logs/work.txt" 2>&1 </dev/null &
    ;;
work)
    bench jem-30 full jem '[1, 2]'
    bench ensemble-15 quick ensemble '[0, 1, 2]'
    for seed in 0 1; do  # records/2026-11-19_spread/plan.md
        python benchmarks/recipe.py records/2026-11-19_spread/variants.json --data "${SEARCHED:-cifar100}" --model "${NETWORK:-resnet50}" \
            --epochs 30 --branch 0.8334 --holdout 0.118 --allow-unofficial --seed "$seed" --out "$rest/logs/spread-$seed.json" \
            >"$rest/logs/spread-$seed.txt" 2>&1 || true
    done
    python benchmarks/speed.py --modern >"$rest/logs/speed-modern.txt" 2>&1 || true
    python -m pytest -q tests/test_graphed.py tests/test_fused.py >"$rest/logs/tests.txt" 2>&1 || true
    bench ensemble-30 full ensemble '[0]'
    touch "$rest/done"
    ;;
wait)
    for ((second = 0; second < $2; second++)); do
        [ -e "$rest/done" ] && break
        sleep 1
    done
    for folder in "$rest"/jem-30 "$rest"/ensemble-*; do
        [ -d "$folder" ] || continue
        # Figures, settings and hashes of every run, no weights and no predictions: eight files come back at most.
        tar -czf "$OUT/$(basename "$folder").tar.gz" -C "$rest" --exclude='*.safetensors' --exclude='checkpoint*' "$(basename "$folder")"
    done
    tar -czf "$OUT/logs.tar.gz" -C "$rest" logs
    tail -n 3 "$rest"/logs/*.txt
    ;;
*)
    sed -n 2,9p "$0"
    exit 2
    ;;
esac
