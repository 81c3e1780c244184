#!/bin/sh
# Makes both models from nothing on a machine with a GPU and PyTorch:
#
#   tools/train/all.sh [SECONDS_S [SECONDS_MOE]]
#
# Needs the wheels flash-linear-attention and fla-core besides torch, tokenizers and safetensors. Each training is one
# piece of at most nine minutes; tools/train/README.md says how to cut one into several, or to train on another machine.
set -eu
cd "$(dirname "$0")"
work=../../build/train
mkdir -p "$work"
[ -f "$work/corpus.json" ] || { ./texts.sh "$work/texts"; python3 corpus.py "$work/texts" "$work/corpus.json"; }
[ -f "$work/tokenizer.json" ] || python3 tokenizer.py "$work/corpus.json" "$work/tokenizer.json"
python3 gpu_check.py
python3 train.py fold-s "$work" "$work/fold-s" "${1:-410}"
python3 train.py fold-moe "$work" "$work/fold-moe" "${2:-330}"
for model in fold-s fold-moe; do
    python3 assemble.py "$model" "$work" "$work/$model" "../../models/$model"
done
