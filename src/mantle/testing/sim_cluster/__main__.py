"""Replay one seed with its log, or soak many: `python -m mantle.testing.sim_cluster --seed 7`."""

import logging
import sys
import time
from collections import Counter

import click

from mantle.testing.sim_cluster.event_log import EventLog
from mantle.testing.sim_cluster.invariant import InvariantBroken
from mantle.testing.sim_cluster.run_seed import run_seed
from mantle.testing.sim_cluster.scenario import random_scenario


@click.command()
@click.option("--seed", type=int, default=0, show_default=True, help="The (first) seed.")
@click.option("--seeds", type=int, default=1, show_default=True, help="How many, one by one.")
def main(seed: int, seeds: int) -> None:
    """Run small random worlds through the real scheduler and placement."""
    if seeds == 1:
        _show(seed)
    else:
        logging.getLogger("mantle").addHandler(logging.NullHandler())  # damage is part of it
        _soak(seed, seeds)


def _show(seed: int) -> None:
    log = EventLog()
    click.echo(random_scenario(seed).summary())
    try:
        watcher = run_seed(seed, log=log)
    except InvariantBroken as error:
        click.echo("\n".join(log.lines))
        click.echo(f"BROKEN: {error}")
        sys.exit(1)
    click.echo("\n".join(log.lines))
    counts = ", ".join(f"{outcome} {count}" for outcome, count in watcher.outcomes.items())
    click.echo(f"all promises kept: {counts}; certificate {watcher.certificate_max():.2f}")


def _soak(first: int, count: int) -> None:
    started_s = time.monotonic()
    outcomes: Counter[str] = Counter()
    certificate, windows, parks = 0.0, 0, 0
    broken: list[str] = []
    for index in range(count):
        try:
            watcher = run_seed(first + index)
        except InvariantBroken as error:
            broken.append(str(error))
            click.echo(str(error), err=True)
            continue
        outcomes.update(watcher.outcomes)
        certificate = max(certificate, watcher.certificate_max())
        windows += sum(w.compared for w in watcher.windows.values())
        parks += sum(life.parks for life in watcher.lives)
        if (index + 1) % 1_000 == 0:
            rate = (index + 1) / (time.monotonic() - started_s)
            click.echo(f"{index + 1} seeds, {rate:.0f}/s, {len(broken)} broken", err=True)
    counts = ", ".join(f"{outcome} {number}" for outcome, number in sorted(outcomes.items()))
    click.echo(
        f"{count} seeds from {first}: {len(broken)} broken; {counts}; {parks} parks; "
        f"certificate at most {certificate:.2f} in {windows} compared windows"
    )
    if broken:
        sys.exit(1)


if __name__ == "__main__":
    main()
