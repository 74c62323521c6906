"""The installed package is usable: `cmake --install` to a temporary prefix, then the examples are
built against it with find_package(swiglu), one also with pkg-config, and run from there; the installed
command runs too, the headers stand alone, and nothing of the build tree is needed.

usage: check_package.py BUILD_FOLDER EXAMPLES_FOLDER CMAKE COMPILER
"""
import os
import pathlib
import re
import shlex
import sys
import tempfile

from steps import expect, run

build, examples, cmake, compiler = sys.argv[1:]

with tempfile.TemporaryDirectory(prefix="swiglu-install-") as folder:
    folder = pathlib.Path(folder)
    prefix = folder / "prefix"
    run(cmake, "--install", build, "--prefix", prefix)
    for text in [*prefix.rglob("*.cmake"), *prefix.rglob("*.pc")]:
        expect(build not in text.read_text(), f"no path of the build tree in {text.relative_to(prefix)}")

    # find_package(swiglu)
    run(cmake, "-S", examples, "-B", folder / "found", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF")
    run(cmake, "--build", folder / "found")
    first = run(folder / "found" / "block")
    expect(re.search(r"^token 3: \S+", first, re.M), f"four tokens from the example, found {first!r}")

    # A whole model, where there is one.
    data = pathlib.Path(os.environ.get("SWIGLU_TEST_DATA", "/nonexistent"))
    model = data / "derived" / "stories260K" / "full_hf_f32"
    if model.is_dir():
        text = run(folder / "found" / "story", model, data / "llama2c" / "tok512.bin")
        expect(text.startswith("Once upon a time, there was a little girl named Lily."), f"a story, found {text!r}")

    # pkg-config
    packages = list(prefix.rglob("swiglu.pc"))
    expect(len(packages) == 1, f"one swiglu.pc, found {packages}")
    library_folder = packages[0].parent.parent
    shared = any(library_folder.glob("libswiglu.so"))
    environment = dict(os.environ, PKG_CONFIG_PATH=str(packages[0].parent))
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", *([] if shared else ["--static"]), "swiglu",
                            env=environment))
    program = folder / "block"
    run(compiler, "-std=c++20", "-O1", pathlib.Path(examples) / "block.cpp", "-o", program, *flags,
        f"-Wl,-rpath,{library_folder}")
    expect(run(program) == first, "the same bits from both ways of building")

    # The same from C.
    from_c = run(folder / "found" / "block_c")
    expect(re.search(r"^token 3: \S+", from_c, re.M), f"four tokens from C, found {from_c!r}")
    run("cc", "-std=c11", "-O1", pathlib.Path(examples) / "block.c", "-o", folder / "block_c", *flags,
        *([] if shared else ["-lstdc++"]), f"-Wl,-rpath,{library_folder}")
    expect(run(folder / "block_c") == from_c, "the same bits from both ways of building it")
    for language, standard in (("c", "c11"), ("c++", "c++11")):
        run("cc", f"-std={standard}", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", language, "-I",
            prefix / "include", "-", input="#include <swiglu/swiglu.h>\n")

    # On ranks, where the package has them: the same token from all, and from one process.
    if (folder / "found" / "ranks").exists():
        allowed = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_rmaps_base_oversubscribe="1")
        ranks = run("mpiexec", "-n", "3", folder / "found" / "ranks", env=allowed)
        token = re.search(r"^token 0: (.*)$", first, re.M)[1]
        expect(ranks.count(f"token 0: {token}") == 3, f"three ranks with token 0: {token}, found {ranks!r}")

    # Every header alone, with the include folder of the package and nothing else.
    for header in sorted((prefix / "include" / "swiglu").glob("*.hpp")):
        run(compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-I", prefix / "include",
            "-", input=f"#include <swiglu/{header.name}>\n")

    # The installed command finds its library by itself.
    command = prefix / "bin" / "swiglu"
    if command.exists():
        expect(run(command, "width", "--dim", "4096").strip() == "11008", "11008 from the installed `swiglu width`")
        version = run(command, "--version").strip()
        expect(run("pkg-config", "--modversion", "swiglu", env=environment).strip() in version,
               f"the package's version in {version!r}")
print("installed, found in two ways, built and run")
