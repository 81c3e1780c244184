#!/bin/sh
# Serves MODEL (default: the model that ships in models/, or a random one made on the spot) on 127.0.0.1:PORT.
set -eu
cd "$(dirname "$0")/.."
port=${PORT:-8080}
model=${MODEL:-}
shipped=models/fold-s
random=build/models/synth-tiny

if [ -z "$model" ] && [ -d "$shipped" ]; then
    model=$shipped
elif [ -z "$model" ]; then
    model=$random
    if [ ! -d "$random" ]; then
        rm -rf "$random.part"
        mkdir -p "$(dirname "$random")"
        build/tokenfold synth tiny "$random.part"
        mv "$random.part" "$random"
    fi
    echo "No trained model is in models/ yet: this one has random weights, and its words are random too."
fi

exec build/tokenfold serve "$model" --host 127.0.0.1 --port "$port"
