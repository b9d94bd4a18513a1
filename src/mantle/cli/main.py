"""The command `mantle`: one group, one sub-command a file."""

import click

from mantle import __version__
from mantle.cli.admin import admin
from mantle.cli.config_check import config_group
from mantle.cli.journal import journal
from mantle.cli.models import models
from mantle.cli.serve import serve
from mantle.cli.simulate import simulate
from mantle.cli.tenant_report import report
from mantle.cli.tenants import tenants


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="mantle")
def main() -> None:
    """Mantle: a multi-tenant LLM inference server that speaks OpenAI and Anthropic."""


tenants.add_command(report)
main.add_command(serve)
main.add_command(simulate)
main.add_command(models)
main.add_command(tenants)
main.add_command(admin)
main.add_command(journal)
main.add_command(config_group)

if __name__ == "__main__":
    main()
