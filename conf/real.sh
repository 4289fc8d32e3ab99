#!/bin/sh
# Runs two nights with a small pretrained LLM on the synthetic data set: `conf/real.sh OUT`. `make real` calls it after
# conf/setup.sh with the extra gguf. If DARE_DATA names a folder with ml-1m and the recorded profiles
# (docs/how-to/train-a-writer.md), it also runs two nights on MovieLens 1M; in the second, histories have newer films.
# LIMIT is the number of users, and of items, of each night; MODEL is another model. The last line of standard output is
# the JSON object of the last run.
set -eu
cd "$(dirname "$0")/.."
out=$1
limit=${LIMIT:-10}
dare=.venv/bin/dare-job
model=${MODEL:-$(sh conf/smollm2.sh)}

say() { printf 'real: %s\n' "$*" >&2; }

night() {  # FOLDER DATE OPTION...
  folder=$1 date=$2
  shift 2
  say "$folder, $date"
  $dare run --config conf/real.yaml --model "$model" --out "$out/$folder" --date "$date" --limit "$limit" "$@"
}

[ -d "$out/sample" ] || $dare data sample --save "$out/sample" >&2
rm -rf "$out/real" "$out/real-ml-1m" "$out/ml-1m"
night real 2026-01-01 --input "$out/sample" >&2
if [ -d "${DARE_DATA:-}/ml-1m" ] && [ -d "$DARE_DATA/knowledge" ]; then
  night real 2026-01-02 --input "$out/sample" >&2
  .venv/bin/python -m dare_job.bench two-date-input --data "$DARE_DATA" --save "$out/ml-1m" >&2
  night real-ml-1m 2026-01-01 --input "$out/ml-1m" >&2
  night real-ml-1m 2026-01-02 --input "$out/ml-1m" --json
else
  night real 2026-01-02 --input "$out/sample" --json
fi
