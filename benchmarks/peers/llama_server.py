"""How is the peer `llama-server` built and run? From the sdist that Mantle's own engine comes from.

Invariant: the same llama.cpp source, compiler and CMake flags as the llama-cpp-python that Mantle
uses; `print_flags` shows both sides. Everything lies under `.build/llama-server`, built once
(`python benchmarks/build_peers.py` does it ahead of a measurement).
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from peers.process import running

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".build" / "llama-server"
SERVER: Final = CACHE / "build" / "bin" / "llama-server"
SETUP_LOG: Final = ROOT / ".build" / "llama-cpp-python.log"
VERSION: Final = "0.3.36"

# What llama-cpp-python's CMakeLists.txt sets itself (shared libraries, no curl, Release by
# scikit-build-core), and what leaves out parts that no benchmark asks for. GGML_* stay at their
# defaults on both sides (GGML_NATIVE=ON, OpenMP, llamafile kernels, Q4_0 repacking).
FLAGS: Final = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
)


def build(jobs: int | None = None) -> Path:
    """The path of `llama-server`, built when it is not there yet (about ten minutes on 2 cores)."""
    if SERVER.exists():
        return SERVER
    for tool, package in (("cmake", "cmake"), ("g++", "g++")):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is missing: install the package `{package}` and run again")
    source = _source()
    flags = [*FLAGS, *os.environ.get("CMAKE_ARGS", "").split()]
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    build_dir = CACHE / "build"
    print(f"building llama-server of llama-cpp-python {VERSION}, once, in {build_dir}", flush=True)
    subprocess.run(
        ["cmake", "-S", str(source), "-B", str(build_dir), *generator, *flags],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    compile_jobs = str(jobs or os.cpu_count() or 1)
    subprocess.run(
        ["cmake", "--build", str(build_dir), "--target", "llama-server", "-j", compile_jobs],
        check=True,
    )
    return SERVER


def _source() -> Path:
    """llama.cpp's source tree, taken from the sdist that pip downloads."""
    tree = CACHE / f"llama_cpp_python-{VERSION}"
    source = tree / "vendor" / "llama.cpp"
    if (source / "CMakeLists.txt").exists():
        return source
    CACHE.mkdir(parents=True, exist_ok=True)
    package = f"llama-cpp-python=={VERSION}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", "llama-cpp-python", "--dest", str(CACHE), package]
    subprocess.run(command, check=True)
    with tarfile.open(CACHE / f"llama_cpp_python-{VERSION}.tar.gz") as archive:
        archive.extractall(CACHE, filter="data")
    return source


def flags_report() -> dict[str, str | bool | None]:
    """How both sides' CPU kernels were compiled, and which CPU features each library reports.

    Mantle's own flags are known only if `make setup` compiled here: a wheel from pip's cache
    leaves no log (then `same_kernel_flags` is None, and the features must tell).
    """
    own, peer = _own_kernel_flags(), _peer_kernel_flags()
    return {
        "same_kernel_flags": own == peer if own and peer else None,
        "mantle_kernel_flags": own,
        "peer_kernel_flags": peer,
        "mantle_features": _features({}),
        "peer_features": _features({"LLAMA_CPP_LIB_PATH": str(SERVER.parent)}),
        "peer_cmake_flags": " ".join(FLAGS),
    }


def _features(environment: dict[str, str]) -> str:
    """What a libllama says of itself; the variable makes llama-cpp-python load the peer's."""
    code = "import llama_cpp; print(llama_cpp.llama_print_system_info().decode())"
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, check=True
    )
    return result.stdout.strip().strip("| ")


def print_flags() -> None:
    for name, text in flags_report().items():
        print(f"{name}: {text}")


def _peer_kernel_flags() -> str | None:
    commands = json.loads((CACHE / "build" / "compile_commands.json").read_text())
    found = [e["command"] for e in commands if e["file"].endswith("ggml-cpu/repack.cpp")]
    return _code_flags(found[0]) if found else None


def _own_kernel_flags() -> str | None:
    lines = SETUP_LOG.read_text(errors="replace").splitlines() if SETUP_LOG.exists() else []
    found = [line for line in lines if " -c " in line and line.endswith("ggml-cpu/repack.cpp")]
    return _code_flags(found[0]) if found else None


def _code_flags(command: str) -> str:
    """Those flags of a compiler command that change the code it writes."""
    return " ".join(re.findall(r"(?:^|\s)(-O\S+|-m\S+|-f\S+|-std=\S+|-DGGML\S+)", command))


@contextlib.contextmanager
def running_llama_server(
    model: Path, *, slots: int, threads: int, ctx: int, port: int, extra: tuple[str, ...] = ()
) -> Iterator[str]:
    """A `llama-server` on loopback; yields its base URL (`http://127.0.0.1:PORT`).

    `ctx` is the context of one slot in tokens: llama-server's own `-c` is for all slots together.
    Continuous batching is its default; the prompt cache across requests is off, as each
    benchmark request has a prompt of its own.
    """
    command = [str(build()), "--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--parallel", str(slots), "--ctx-size", str(ctx * slots)]
    command += ["--threads", str(threads), "--threads-batch", str(threads)]
    command += ["--cont-batching", "--no-ui", *extra]
    url = f"http://127.0.0.1:{port}"
    log_path = CACHE / f"server-{port}.log"
    with running(command, ready_url=f"{url}/health", ready_s=60, log_path=log_path):
        yield url
