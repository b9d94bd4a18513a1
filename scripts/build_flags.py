"""Which instructions would a build for this CPU use in vain? Compiler flags that leave them out.

llama.cpp, compiled for "this very CPU", uses AMX tiles in each prefill where there are any. Two
things make it die there: a virtual machine that announces AMX and traps on it, and GCC before 13,
whose `_tile_loadconfig` drops the writes to a configuration on the stack (llama.cpp's is one). So
both are tried, by a program of a few lines. Run as a script it prints the flags, on one line.
Standard library only, and parseable by old Pythons.
"""

import os
import shutil
import subprocess
import sys
import tempfile

NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"

# 0x1023 asks the kernel for a feature (ARCH_REQ_XCOMP_PERM), 18 is the tile data.
TRIES_AMX = """
#if defined(__AMX_TILE__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
struct shape { unsigned char palette, start, unused[14]; unsigned short widths[16];
               unsigned char rows[16]; };
int main(void) {
  struct shape shape __attribute__((aligned(64))) = {0};
  if (syscall(SYS_arch_prctl, 0x1023, 18)) return 1;
  shape.palette = 1; shape.widths[0] = 64; shape.rows[0] = 16;
  _tile_loadconfig(&shape); _tile_zero(0); _tile_release();
  return 0;
}
#else
int main(void) { return 0; }
#endif
"""


def build_flags():
    """Flags for C and C++ compilers; empty when nothing must be left out, or nothing compiles."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "try.c"), os.path.join(folder, "try")
        with open(source, "w") as file:
            file.write(TRIES_AMX)
        command = [*compiler.split(), "-O3", "-march=native", source, "-o", program]
        if _status(command) != 0:
            return ""
        return "" if _status([program]) == 0 else NO_AMX


def with_flags(environment):
    """A copy of `environment` in which a build leaves those instructions out."""
    flags = build_flags()
    changed = dict(environment)
    for name in ("CFLAGS", "CXXFLAGS"):
        if flags:
            changed[name] = " ".join(filter(None, [changed.get(name, ""), flags]))
    return changed


def _status(command):
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.stdout.write(build_flags() + "\n")
