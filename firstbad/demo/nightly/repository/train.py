"""Train the nightly recipe: python train.py --recipe nightly [KEY=VALUE ...]."""

import argparse
import importlib

from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.vlm_step import forward_step
from vlm.overrides import apply_overrides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="nightly", help="a module of recipes/")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="e.g. train.micro_batch_size=1")
    arguments = parser.parse_args()
    config = importlib.import_module(f"recipes.{arguments.recipe}").config()
    apply_overrides(config, arguments.overrides)
    pretrain(config, forward_step)


if __name__ == "__main__":
    main()
