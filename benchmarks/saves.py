"""Whether the checkpoints that are kept of scripts are whole, over many ways to save.

python -m benchmarks.saves 200

draws as many scripts, runs each with its pause or kill, and prints those of which a checkpoint was
torn or lost, then how many there were.
"""

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.train.programs.drawn_saves import Kept, draw_way, play


def play_drawn(folder: Path, seed: int) -> Kept:
    kept = play(draw_way(seed), folder / f"s{seed}")
    if kept.torn or kept.lost:
        print(seed, kept.way, "torn", kept.torn, "lost", kept.lost, kept.found, flush=True)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", type=int, nargs="?", default=200)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--at-once", type=int, default=6)
    args = parser.parse_args()
    began = time.monotonic()
    seeds = range(args.first, args.first + args.scripts)
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(args.at_once) as pool:
        all_kept = list(pool.map(play_drawn, [Path(name)] * len(seeds), seeds))
    total = sum(len(kept.found) for kept in all_kept)
    torn = sum(len(kept.torn) for kept in all_kept)
    lost = sum(len(kept.lost) for kept in all_kept)
    print(
        f"{len(seeds)} scripts: {total} checkpoints kept, {torn} torn, {lost} lost, in "
        f"{time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
