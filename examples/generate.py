"""A real model with its own feed-forwards, then with swiglu's: the same text, and both speeds.

    python examples/generate.py MODEL_FOLDER [--tokens 100] [--prompt TEXT | --ids 1,100] [--fuse] [--dtype bfloat16]

MODEL_FOLDER is what transformers reads: config.json and weights, of Llama, Mistral, Qwen 2 and 3, or Phi-3. Decoding is
greedy. Without a tokenizer in the folder, ids are read and printed; --tokenizer takes one of llama2.c (tok512.bin).
Needs torch and transformers.
"""
import argparse
import pathlib
import struct
import sys
import time

import torch
import transformers

import swiglu.torch


def llama2c_pieces(path):
    """The texts of a tokenizer file of llama2.c: int32 longest, then for each token a float, a length, bytes."""
    data, pieces, at = pathlib.Path(path).read_bytes(), [], 4
    while at < len(data):
        _, size = struct.unpack_from("<fI", data, at)
        pieces.append(data[at + 8:at + 8 + size])
        at += 8 + size
    return pieces


def text_of(ids, folder, tokenizer):
    if tokenizer:
        pieces = llama2c_pieces(tokenizer)
        return b"".join(pieces[i] for i in ids if i > 2).replace(b"<0x0A>", b"\n").decode(errors="replace").lstrip()
    if (folder / "tokenizer_config.json").exists():
        return transformers.AutoTokenizer.from_pretrained(folder).decode(ids, skip_special_tokens=True)
    return " ".join(map(str, ids))


def generate(model, ids, count):
    """Greedy: (all ids, tokens a second)."""
    started = time.perf_counter()
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0)
    return found, (found.shape[1] - ids.shape[1]) / (time.perf_counter() - started)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=100, help="how many to generate")
    parser.add_argument("--prompt", help="where the folder has a tokenizer")
    parser.add_argument("--ids", default="", help="the prompt as ids; without it the BOS token")
    parser.add_argument("--tokenizer", help="a tokenizer file of llama2.c")
    parser.add_argument("--fuse", action="store_true", help="norm and residual of the feed-forwards, too")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=0, help="of torch and of swiglu; 0: those of the machine")
    options = parser.parse_args()
    pool = swiglu.ThreadPool(options.threads)
    torch.set_num_threads(pool.threads)
    torch.set_grad_enabled(False)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype)).eval()
    if options.prompt is not None:
        ids = transformers.AutoTokenizer.from_pretrained(options.model)(options.prompt, return_tensors="pt").input_ids
    else:
        ids = torch.tensor([[int(i) for i in options.ids.split(",")] if options.ids else [model.config.bos_token_id]])

    generate(model, ids, 2)  # the first call of a model takes longer
    own, own_speed = generate(model, ids, options.tokens)
    own_logits = model(own).logits.double()
    with swiglu.torch.patch(model, fuse=options.fuse, pool=pool) as patched:
        generate(model, ids, 2)
        ours, our_speed = generate(model, ids, options.tokens)
        logits = model(own).logits.double()

    difference = (logits - own_logits).norm() / own_logits.norm()
    same = torch.equal(own, ours)
    print(text_of(ours[0].tolist(), options.model, options.tokenizer))
    print(f"\n{len(patched.names)} feed-forwards, {patched.packed_bytes / 1e6:.1f} MB packed, {options.dtype}"
          f"{', norm and residual fused' if options.fuse else ''}, {pool.threads} thread{'s' * (pool.threads > 1)}", file=sys.stderr)
    print(f"text    {'the same' if same else 'differs'}: {ours.shape[1]} tokens\n"
          f"logits  {difference:.1e} apart (relative, over all of them)\n"
          f"speed   {own_speed:.1f} tokens/s with torch's MLP, {our_speed:.1f} with swiglu's", file=sys.stderr)
    # In bf16 two roundings may well choose another word; in f32 that needs a tie.
    return 0 if same or options.dtype == "bfloat16" else 1


if __name__ == "__main__":
    sys.exit(main())
