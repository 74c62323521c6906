"""The sublayer's product part, swiglu beside torch's own MLP, called from Python, in one process and in turns.

torch's side is what a model of transformers runs: down(silu(gate(x)) * up(x)) of three Linear modules, without
gradients. swiglu's side is swiglu.torch.SwiGLU of the same weights, which are random. As in a model, a token goes through
layers with weights of their own (--layers), so that caches hold none of them, and each side finds its threads awake.
Times are for one layer: the median of passes in turns; `faster` is the median of the ratios of neighbouring passes, with
its quartiles.
"""
import argparse
import json
import statistics
import sys
import time

import torch

import swiglu
import swiglu.torch


class Mlp(torch.nn.Module):
    """As transformers' LlamaMLP."""

    def __init__(self, dim, hidden, dtype):
        super().__init__()
        self.gate_proj = torch.nn.Linear(dim, hidden, bias=False, dtype=dtype)
        self.up_proj = torch.nn.Linear(dim, hidden, bias=False, dtype=dtype)
        self.down_proj = torch.nn.Linear(hidden, dim, bias=False, dtype=dtype)

    def forward(self, x):
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def clock(layers, x):
    """Seconds for each layer in one pass."""
    started = time.perf_counter()
    for layer in layers:
        layer(x)
    return (time.perf_counter() - started) / len(layers)


def compare(theirs, ours, x, seconds):
    """Times of both, in turns, who begins taking turns, too."""
    times = [[], []]
    ended = time.perf_counter() + seconds
    while time.perf_counter() < ended or len(times[0]) < 5:
        for which in ((0, 1) if len(times[0]) % 2 else (1, 0)):
            layers = (theirs, ours)[which]
            layers[-1](x)  # wakes the threads, and lets the other side's fall asleep
            times[which].append(clock(layers, x))
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=14336)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", default="1,16,128", help="numbers of tokens, with commas")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as the process may use")
    parser.add_argument("--seconds", type=float, default=8, help="for each row")
    parser.add_argument("--json", help="every sample, into this file")
    options = parser.parse_args()
    pool = swiglu.ThreadPool(options.threads)
    torch.set_num_threads(pool.threads)
    torch.set_grad_enabled(False)
    print(f"{options.layers} layers of dim {options.dim}, hidden {options.hidden}, {pool.threads} threads, torch {torch.__version__}, "
          f"swiglu {swiglu.__version__}\n")
    print(f"{'weights':8} {'storage':8} {'tokens':>6} {'torch':>10} {'ours':>10}   {'faster':>6}  quartiles")
    rows = []
    for name, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
        torch.manual_seed(1)
        theirs = [Mlp(options.dim, options.hidden, dtype) for _ in range(options.layers)]
        for layer in theirs:
            for parameter in layer.parameters():  # as in trained models: most of them small
                parameter.normal_(0, 0.02)
        for storage in ("plain", "compact") if name == "bf16" else ("plain",):
            ours = [swiglu.torch.SwiGLU(m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight, storage=storage,
                                        pool=pool) for m in theirs]
            for tokens in map(int, options.tokens.split(",")):
                x = torch.randn(tokens, options.dim).to(dtype)
                expected = theirs[0](x).double()
                error = (ours[0](x).double() - expected).norm() / expected.norm()
                if not error < (2e-2 if name == "bf16" else 1e-4):
                    sys.exit(f"{name}, {tokens} tokens: the results differ by {error:.1e}")
                slow, fast = compare(theirs, ours, x, options.seconds)
                low, middle, high = statistics.quantiles([a / b for a, b in zip(slow, fast)], n=4)
                print(f"{name:8} {storage:8} {tokens:6} {statistics.median(slow) * 1e3:7.2f} ms "
                      f"{statistics.median(fast) * 1e3:7.2f} ms   {middle:6.2f}  {low:.2f} to {high:.2f}", flush=True)
                rows.append({"weights": name, "storage": storage, "tokens": tokens, "threads": pool.threads,
                             "torch_seconds": slow, "swiglu_seconds": fast})
            del ours
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"schema_version": 1, "dim": options.dim, "hidden": options.hidden, "rows": rows}, file)


if __name__ == "__main__":
    main()
