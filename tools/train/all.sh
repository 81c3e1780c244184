#!/bin/sh
# Makes both models and the drafter from nothing on a machine with a GPU and PyTorch:
#
#   tools/train/all.sh [SECONDS_S [SECONDS_MOE [SECONDS_DRAFTER]]]
#   tools/train/all.sh smoke        the same steps, short, on a CPU too: models that know nothing, in build/train/smoke
#
# Needs the wheels flash-linear-attention and fla-core (for a GPU) besides torch, transformers, tokenizers,
# safetensors and jinja2. Each training is one piece of at most nine minutes; tools/train/README.md says how to cut
# one into several, or to train on another machine.
set -eu
cd "$(dirname "$0")"
work=../../build/train
mkdir -p "$work"
[ -f "$work/corpus.json" ] || { ./texts.sh "$work/texts"; python3 corpus.py "$work/texts" "$work/corpus.json"; }
[ -f "$work/tokenizer.json" ] || python3 tokenizer.py "$work/corpus.json" "$work/tokenizer.json"
pieces=$work models=../../models options="" items=40
if [ "${1:-}" = smoke ]; then
    pieces=$work/smoke models=$work/smoke/models items=1
    options="--tokens 2048 --workers 1 --exam 0"
    set -- 20 20 20
fi
mkdir -p "$pieces" "$models"
python3 check.py "$work"
! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || python3 gpu_check.py
# shellcheck disable=SC2086 # options are words
{
    python3 train.py fold-s "$work" "$pieces/fold-s" "${1:-410}" $options
    python3 train.py fold-moe "$work" "$pieces/fold-moe" "${2:-330}" $options
    for model in fold-s fold-moe; do
        python3 assemble.py "$model" "$work" "$pieces/$model" "$models/$model"
    done
    python3 train_dflash.py "$models/fold-s" "$work" "$pieces/fold-s-DFlash2" "${3:-410}" $options
}
mkdir -p "$models/fold-s-DFlash2"
cp "$pieces/fold-s-DFlash2/config.json" "$pieces/fold-s-DFlash2/model.safetensors" "$models/fold-s-DFlash2/"
for model in fold-s fold-moe; do
    python3 acceptance.py "$models/$model" "$work" "$items"
done
