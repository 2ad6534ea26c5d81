"""The command line: `tinyserve serve | generate | chat | doctor`.

Options come from the declarations in `config.py`; see `options`. What the user got wrong is one
line on stderr and exit code 2, never a traceback.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from tinyserve.cli.options import build_parser
from tinyserve.errors import TinyServeError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not know every character
        sys.stdout.reconfigure(errors="replace")
    try:
        return run_command(arguments.command, arguments)
    except TinyServeError as error:
        print(f"tinyserve: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `tinyserve generate ... | head`
        sys.stderr.close()
        return 141
    except UnicodeDecodeError as error:
        print(f"tinyserve: the input is not {error.encoding}: {error.reason}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk behind stdout
        print(f"tinyserve: {error}", file=sys.stderr)
        return 1


def run_command(command: str, arguments: object) -> int:
    """Commands are imported when they are run: `--help` and `doctor` need no web framework."""
    import importlib

    module = importlib.import_module(f"tinyserve.cli.{command}")
    code: int = module.run(arguments)
    return code
