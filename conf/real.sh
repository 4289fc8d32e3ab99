#!/bin/sh
# Runs two nights with a small pretrained LLM on the synthetic data set: `conf/real.sh OUT`. `make real` calls it after
# conf/setup.sh with the extra gguf. If DARE_DATA names a folder that contains ml-1m, it also runs two nights on
# MovieLens 1M. LIMIT is the number of users, and of items, of each night. The last line of standard output is the JSON
# object of the last run.
set -eu
cd "$(dirname "$0")/.."
out=$1
limit=${LIMIT:-12}
dare=.venv/bin/dare-job
model=$(sh conf/smollm2.sh)

say() { printf 'real: %s\n' "$*" >&2; }

night() {  # FOLDER DATE OPTION...
  folder=$1 date=$2
  shift 2
  say "$folder, $date"
  $dare run --config conf/real.yaml --model "$model" --out "$out/$folder" --date "$date" --limit "$limit" "$@"
}

[ -d "$out/sample" ] || $dare data sample --save "$out/sample" >&2
rm -rf "$out/real" "$out/real-ml-1m"
night real 2026-01-01 --input "$out/sample" >&2
if [ -d "${DARE_DATA:-}/ml-1m" ]; then
  night real 2026-01-02 --input "$out/sample" >&2
  night real-ml-1m 2026-01-01 --input "$DARE_DATA/ml-1m" >&2
  night real-ml-1m 2026-01-02 --input "$DARE_DATA/ml-1m" --json
else
  night real 2026-01-02 --input "$out/sample" --json
fi
