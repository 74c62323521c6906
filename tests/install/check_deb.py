"""The Debian packages: `cpack` makes them in a temporary folder; names, dependencies and contents are as they
should be, nothing in them names the build tree, and unpacked anywhere the command runs and the example builds.
With "clean" they are installed by apt on a new Debian instead, which debootstrap makes in a temporary folder
(root and a mirror; exit code 77 without), and used there.

usage: check_deb.py BUILD_FOLDER SOURCE_FOLDER CPACK COMPILER [clean]
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from steps import expect, run

build, source, cpack, compiler = sys.argv[1:5]
SUITE = "bookworm"  # from where debootstrap gets it by itself


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def make(folder):
    """The packages by name; swiglu-mpi only where the build has it."""
    run(cpack, "--config", pathlib.Path(build) / "CPackConfig.cmake", "-B", folder)
    packages = {file.name.split("_")[0]: file for file in folder.glob("*.deb")}
    wanted = {"swiglu"} | ({"swiglu-mpi"} if (pathlib.Path(build) / "swiglu_mpi.pc").exists() else set())
    expect(set(packages) == wanted, f"the packages {wanted}, found {set(packages)}")
    return packages


def field(package, name):
    return run("dpkg-deb", "-f", package, name).strip()


def dependencies(package):
    return {part.split()[0] for part in field(package, "Depends").split(",")}


def look_into(packages, folder):
    architecture = run("dpkg", "--print-architecture").strip()
    version = re.search(r"^Version: (.*)$", (pathlib.Path(build) / "swiglu.pc").read_text(), re.M)[1]
    contents = {}
    for name, package in packages.items():
        expect(package.name == f"{name}_{version}_{architecture}.deb", f"name, version and architecture in {package.name}")
        expect((field(package, "Version"), field(package, "Architecture")) == (version, architecture), "the same inside")
        for needed in ("Maintainer", "Section", "Description"):
            expect(field(package, needed), f"{needed} of {name}")
        unpacked = folder / name
        run("dpkg-deb", "-x", package, unpacked)
        run("dpkg-deb", "-e", package, folder / f"{name}-control")
        expect("ldconfig" in (folder / f"{name}-control" / "postinst").read_text(), f"{name} to call ldconfig")
        files = [p for p in unpacked.rglob("*") if p.is_file() and not p.is_symlink()]
        for file in files:
            expect(not file.stat().st_mode & 0o022, f"{file} that only its owner may write")
            for path in (build, source):
                expect(os.fsencode(path) not in file.read_bytes(), f"no path of the build in {file.relative_to(unpacked)}")
        contents[name] = {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if not p.is_dir() or p.is_symlink()}
    expected = {"swiglu": ("bin/swiglu", "include/swiglu/swiglu.hpp", "lib/libswiglu.so", "lib/libswiglu.so.0",
                           "lib/pkgconfig/swiglu.pc", "lib/cmake/swiglu/swigluConfig.cmake"),
                "swiglu-mpi": ("bin/swiglu-mpi", "include/swiglu/mpi.hpp", "lib/libswiglu_mpi.so.0",
                               "lib/pkgconfig/swiglu_mpi.pc", "lib/cmake/swiglu/swiglu_mpiTargets.cmake")}
    for name in packages:
        for path in (*expected[name], f"share/man/man1/{name}.1", f"share/bash-completion/completions/{name}",
                     f"share/doc/{name}/copyright"):
            expect(f"usr/{path}" in contents[name], f"{path} in {name}, found {sorted(contents[name])}")
    expect(dependencies(packages["swiglu"]) == {"libc6", "libgcc-s1", "libstdc++6", "zlib1g"},
           f"no other dependencies: {field(packages['swiglu'], 'Depends')}")
    if "swiglu-mpi" in packages:
        both = contents["swiglu"] & contents["swiglu-mpi"]
        expect(not both, f"no file in both packages, found {both}")
        expect(dependencies(packages["swiglu-mpi"]) & {"openmpi-bin", "mpich"}, "swiglu-mpi to depend on an mpirun")
        expect(f"swiglu (= {version})" in field(packages["swiglu-mpi"], "Depends"), "swiglu-mpi to depend on this swiglu")


def use_unpacked(folder):
    usr = folder / "swiglu" / "usr"
    expect(run(usr / "bin" / "swiglu", "width", "--dim", "4096").strip() == "11008", "11008 from `swiglu width`")
    environment = dict(os.environ, PKG_CONFIG_PATH=str(usr / "lib" / "pkgconfig"), PKG_CONFIG_ALLOW_SYSTEM_LIBS="1")
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", "swiglu", env=environment))
    run(compiler, "-std=c++20", "-O1", pathlib.Path(source) / "examples" / "block.cpp", "-o", folder / "block", *flags,
        f"-Wl,-rpath,{usr / 'lib'}")
    expect("token 3: " in run(folder / "block"), "four tokens from the example")


def use_on_clean_system(packages, root):
    made = subprocess.run(["debootstrap", "--variant=minbase", "--include=g++,pkg-config,cmake,make", SUITE, root],
                          capture_output=True, text=True)
    if made.returncode != 0:
        skip(f"debootstrap made no {SUITE}: {made.stdout.strip().splitlines()[-1:]}")
    for package in packages.values():
        shutil.copy(package, root / "tmp")
    shutil.copytree(pathlib.Path(source) / "examples", root / "tmp" / "examples")

    def line(command):
        return ["chroot", root, "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/tmp",
                "DEBIAN_FRONTEND=noninteractive", "sh", "-euc", f"cd /tmp; {command}"]

    def inside(command):
        return run(*line(command))

    inside("apt-get install -y --no-install-recommends ./swiglu_*.deb")
    expect("--threads" in inside("swiglu demo --help"), "`swiglu demo --help` to say its flags")
    expect(inside("swiglu width --dim 4096").strip() == "11008", "11008 from `swiglu width`")
    inside("swiglu synth --dim 64 --hidden 172 --layers 2 -o tiny && swiglu verify tiny")
    by_pkgconfig = inside("g++ -std=c++20 examples/block.cpp -o block $(pkg-config --cflags --libs swiglu) && ./block tiny")
    expect("token 3: " in by_pkgconfig, "four tokens from the example")
    # The package without MPI is complete for CMake too.
    found = inside("cmake -S examples -B found >/dev/null && cmake --build found --target swiglu_example_block >/dev/null"
                   " && found/block tiny")
    expect(found == by_pkgconfig, "the same bits by CMake")
    fetch_mpi = line("apt-get install -y --no-install-recommends --download-only ./swiglu-mpi_*.deb")
    if "swiglu-mpi" not in packages or subprocess.run(fetch_mpi, capture_output=True).returncode != 0:
        print("without swiglu-mpi: not made here, or no way to its MPI from there")
        packages.pop("swiglu-mpi", None)
    else:
        inside("apt-get install -y --no-install-recommends ./swiglu-mpi_*.deb")
        # OpenMPI's name for `yes, as root`; mpirun of either package is on the path.
        inside("export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 && "
               "mpirun -n 2 swiglu-mpi verify tiny --layer 0")
    inside(f"apt-get purge -y {' '.join(packages)} && test ! -e /usr/lib/libswiglu.so.0")


with tempfile.TemporaryDirectory(prefix="swiglu-deb-") as name:
    folder = pathlib.Path(name)
    if sys.argv[5:] == ["clean"]:
        if os.geteuid() != 0 or not shutil.which("debootstrap"):
            skip("this needs root and debootstrap")
        use_on_clean_system(make(folder / "made"), folder / "root")
        print("installed by apt on a new Debian, used and removed")
    else:
        packages = make(folder / "made")
        look_into(packages, folder)
        use_unpacked(folder)
        print(f"{', '.join(sorted(packages))}: contents, dependencies, unpacked and built against")
