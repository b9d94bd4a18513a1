"""The processes of a server under test."""

import subprocess


def worker_pids(server):
    """Process ids of its workers."""
    listed = subprocess.run(
        ["pgrep", "-P", str(server.process.pid), "-f", "mantle.engine.worker"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(pid) for pid in listed.stdout.split()]


def zombies_of(server):
    """States of its children that ended and were not reaped."""
    listed = subprocess.run(
        ["ps", "--ppid", str(server.process.pid), "-o", "stat="],
        capture_output=True,
        text=True,
        check=False,
    )
    return [state for state in listed.stdout.split() if "Z" in state]
