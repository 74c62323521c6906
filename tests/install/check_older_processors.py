"""The built command runs on processors that lack the newer instructions: nothing outside a kernel's
own translation unit may use them. Emulated by qemu, which stops at the first unknown instruction;
`swiglu verify` then compares the bits of every ISA that is left, and its error with the oracle.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

swiglu = os.environ["SWIGLU_BIN"]
qemu = shutil.which("qemu-x86_64")
if qemu is None:
    print("skipped: qemu-x86_64 is not installed")
    sys.exit(77)


def run(*command, code=0, **extra):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **extra)
    if done.returncode != code:
        sys.exit(f"{' '.join(map(str, command))}\nexpected exit code {code}, found {done.returncode}\n"
                 f"{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


with tempfile.TemporaryDirectory(prefix="swiglu-older-") as folder:
    model = pathlib.Path(folder) / "model"
    run(swiglu, "synth", "--dim", "160", "--hidden", "544", "--layers", "1", "--format", "hf", "--dtype", "bf16",
        "--seed", "1", "-o", model)
    # Without FMA and AVX2: the scalar kernels with their own fused multiply-add. With AVX2 but no AVX-512.
    for processor, best, missing in (("Nehalem", "scalar", "avx2"), ("Haswell", "avx2", "avx512")):
        emulated = [qemu, "-cpu", processor, swiglu]
        text = run(*emulated, "verify", model)
        if best not in text or "avx512" in text:
            sys.exit(f"{processor}: expected {best} as the best ISA, found\n{text}")
        run(*emulated, "verify", model, code=2, env=dict(os.environ, SWIGLU_ISA=missing))
        print(f"{processor}: {best} verified, {missing} refused")
