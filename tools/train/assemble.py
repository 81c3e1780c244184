"""Makes a model folder on this machine from the weights that a training piece handed back.

  python3 assemble.py MODEL WORK WEIGHTS_DIR OUT

WEIGHTS_DIR holds weights-*.pt and, if the piece handed it back, model.safetensors, which is then taken as it is.
"""

import os
import shutil
import sys

import export
import model
import train


def main():
    name, work, weights, out = sys.argv[1:]
    c = model.CONFIGS[name]
    export.write(c, train.load(c, weights), work, out)
    if os.path.exists(f"{weights}/model.safetensors"):
        shutil.copyfile(f"{weights}/model.safetensors", f"{out}/model.safetensors")
    size = sum(os.path.getsize(os.path.join(out, f)) for f in os.listdir(out))
    print(out, f"{size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
