"""`python -m rollout.sandbox install [NAME ...]`: installs the packages of templates, once."""

import argparse
import sys

from rollout.sandbox.install import InstallError, install_template
from rollout.sandbox.template import load_template, template_names


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when all is there, 2 on a bad name, 3 when npm could not do it."""
    parser = argparse.ArgumentParser(prog="python -m rollout.sandbox", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install", help="install the packages of the named templates (all if none)")
    install.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(template_names())}")
    arguments = parser.parse_args(argv)
    try:
        templates = [load_template(name) for name in arguments.names or template_names()]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        for template in templates:
            print(f"{template.name}: {install_template(template)}")
    except InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
