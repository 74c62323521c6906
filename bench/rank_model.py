"""What tensor parallelism costs and gives: bytes on the wire, and the efficiency that a simple model expects.

    mpirun -n 2 swiglu-mpi bench --tokens 1,16,128 --storage plain --json ranks.json
    bench/rank_model.py ranks.json [--dim 4096] [--faster 20]

The time of one rank comes from the file; a call on R ranks takes the largest share of it, and the exchange: messages
times latency, bytes / bandwidth, additions in memory. Networks are given by latency and bandwidth of a message,
assumed, not measured. --faster: ranks so many times as fast as a rank of the file, as machines of many cores are.
"""
import argparse
import json
import math

NETWORKS = (("this machine", None, None), ("100 Gbit/s", 5e-6, 11e9), ("10 Gbit/s TCP", 30e-6, 1.1e9))
SMALL_FLOATS = 16384  # whole vectors up to here
ADD_BYTES_PER_SECOND = 8e9  # of sums added, by one core


def exchange(ranks, floats):
    """Messages one after another, and bytes sent, of one rank."""
    steps = int(math.log2(ranks))
    if floats <= SMALL_FLOATS:
        return steps, 4 * floats * steps
    return 2 * steps, 4 * floats * 2 * (ranks - 1) / ranks


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("measured")
    arguments.add_argument("--dim", type=int, default=4096)
    arguments.add_argument("--faster", type=float, default=1)
    options = arguments.parse_args()
    with open(options.measured, encoding="utf-8") as file:
        rows = [row for row in json.load(file)["rows"] if "one_process_time_ms" in row]
    print(f"{'tokens':>6}  {'ranks':>5}  {'sent a rank':>11}  {'messages':>8}", *(f"{n:>14}" for n, _, _ in NETWORKS), sep="  ")
    for row in rows:
        alone = row["computing_ms"] * 1e-3 * row["ranks"] / options.faster  # of one rank with all weights
        measured = row["exchanging_ms"] * 1e-3
        for ranks in (2, 8, 16):
            floats = row["tokens"] * options.dim
            messages, sent = exchange(ranks, floats)
            cells = []
            for _, latency, bandwidth in NETWORKS:
                if latency is None:
                    cost = measured if ranks == row["ranks"] and options.faster == 1 else None
                else:
                    cost = messages * latency + sent / bandwidth + sent / ADD_BYTES_PER_SECOND
                cells.append("-" if cost is None else f"{alone / ranks / (alone / ranks + cost):.2f}")
            print(f"{row['tokens']:>6}  {ranks:>5}  {sent / 1e3:>8.1f} kB  {messages:>8}", *(f"{c:>14}" for c in cells), sep="  ")


if __name__ == "__main__":
    main()
