"""Builds and installs the peers ahead of a measurement (about ten minutes, once), shows flags."""

import argparse

import measure
from peers import litellm_proxy, llama_server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=None, help="compilers at a time (all cores)")
    arguments = parser.parse_args()
    litellm = litellm_proxy.install()
    llama_server.build(arguments.jobs)
    llama_server.print_flags()
    measure.print_result({"litellm": litellm, **llama_server.flags_report()})


if __name__ == "__main__":
    main()
