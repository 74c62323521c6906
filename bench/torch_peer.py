"""torch's side of swiglu_peers: the sublayer in torch, one call at a time, as its parent asks for it.

usage: torch_peer.py WEIGHTS IO DIM HIDDEN EPS bf16|f32 THREADS MOST_TOKENS

WEIGHTS and IO are inherited file descriptors of shared memory: norm (f32), gate, up, down row-major; h and out.
On stdin, one line each: `prepare N` is answered with `ok HOW`, `run` with `ok SECONDS` and the result in IO's
out, and the end of input ends it. The first line said is `ready NAME <tab> ABOUT`, or `missing WHY`.
"""
import mmap
import re
import sys
import time


def say(*words):
    print(*words, flush=True)


try:
    import torch
    import torch.nn.functional as F
except Exception as error:  # whatever is wrong with this torch, it is not here
    absent = isinstance(error, ModuleNotFoundError) and error.name == "torch"
    say("missing", "not installed" if absent else f"cannot be imported ({type(error).__name__})")
    sys.exit(0)


def mapped(descriptor, count, dtype, offset):
    memory = mmap.mmap(int(descriptor), 0)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)


class Plain:
    """What a user of torch writes."""

    name = "F.linear"

    def __init__(self, gate, up, down, tokens):
        self.gate, self.up, self.down = gate, up, down

    def __call__(self, n, h):
        return F.linear(F.silu(F.linear(n, self.gate)) * F.linear(n, self.up), self.down) + h


class Packed:
    """What torch.compile turns it into: weights in oneDNN's format, silu, product and residual fused."""

    name = "prepacked, fused (mkldnn._linear_pointwise)"

    def __init__(self, gate, up, down, tokens):
        pack = torch.ops.mkldnn._reorder_linear_weight
        try:
            self.weights = [pack(w.to_mkldnn(), tokens) for w in (gate, up, down)]
        except Exception:  # before torch 2.1 it took no number of tokens
            self.weights = [pack(w.to_mkldnn()) for w in (gate, up, down)]

    def __call__(self, n, h):
        linear = torch.ops.mkldnn._linear_pointwise
        gate, up, down = self.weights
        g = linear(n, gate, None, "swish", [], "")
        z = linear.binary(n, g, up, None, "mul")
        return linear.binary(z, h, down, None, "add")


def main():
    weights, io, dim, hidden, eps, compute, threads, most = sys.argv[1:9]
    dim, hidden, most, eps = int(dim), int(hidden), int(most), float(eps)
    dtype, size = (torch.bfloat16, 2) if compute == "bf16" else (torch.float32, 4)
    torch.set_num_threads(int(threads))
    torch.set_grad_enabled(False)
    g = mapped(weights, dim, torch.float32, 0).clone()
    matrix = dim * hidden
    gate, up, down = (mapped(weights, matrix, dtype, 4 * dim + i * matrix * size).clone() for i in range(3))
    gate, up, down = gate.view(hidden, dim), up.view(hidden, dim), down.view(dim, hidden)
    h_all = mapped(io, most * dim, dtype, 0).view(most, dim)
    out_all = mapped(io, most * dim, dtype, most * dim * size).view(most, dim)

    def block(form, h):
        x = h.float()
        n = (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * g).to(dtype)
        return form(n, h)

    def timed(form, h):
        start = time.perf_counter()
        out = block(form, h)
        return time.perf_counter() - start, out

    config = torch.__config__.show()
    onednn = re.search(r"(?:MKL-DNN|oneDNN|OneDNN)\D*v?([\d.]+)", config)
    isa = re.search(r"CPU capability usage: (\S+)", config)
    say(f"ready torch {torch.__version__}\toneDNN {onednn.group(1) if onednn else 'of unknown version'} inside, "
        f"{isa.group(1) if isa else 'unknown ISA'}, {torch.get_num_threads()} threads, in a process of its own")
    best = h = None
    for line in sys.stdin:
        words = line.split()
        if words[0] == "prepare":
            best = None  # before the next copies are made
            h = h_all[: int(words[1])].clone()
            trials = []
            for kind in (Packed, Plain):
                try:
                    form = kind(gate, up, down, len(h))
                    timed(form, h)
                    seconds, out = min((timed(form, h) for _ in range(3)), key=lambda trial: trial[0])
                    trials.append((seconds, kind.name, form))
                except Exception as error:  # an operator that this torch or processor lacks
                    print(f"torch_peer: {kind.name}: {error}".splitlines()[0], file=sys.stderr)
            if not trials:
                say("failed: neither form runs here")
                return
            _, how, best = min(trials, key=lambda trial: trial[0])
            say("ok", how)
        elif words[0] == "run":
            seconds, out = timed(best, h)
            out_all[: len(h)].copy_(out)
            say("ok", repr(seconds))


main()
