"""The command line: `tinyserve serve | generate | chat | doctor`.

Options come from the declared settings (`config.py`); see `options`. A user's mistake is one line
on stderr and exit code 2, never a traceback.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Sequence

from tinyserve.cli.options import build_parser, parse_arguments
from tinyserve.errors import EngineDeadError, TinyServeError
from tinyserve.logs import logs_json


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    open_standard_streams()
    arguments = parse_arguments(argv)
    if arguments.command is None:
        build_parser().print_help(sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not know every character
        sys.stdout.reconfigure(errors="replace")
    try:
        return run_command(arguments.command, arguments)
    except TinyServeError as error:
        _complain(error)
        # For what restarts the server: 1 says that another start may help, 2 that none will.
        return 1 if isinstance(error, EngineDeadError) else 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `tinyserve generate ... | head`
        sys.stderr.close()
        return 141
    except UnicodeDecodeError as error:
        _complain(f"the input is not {error.encoding}: {error.reason}")
        return 2
    except MemoryError as error:
        _complain(_out_of_memory(error))
        return 1
    except OSError as error:  # a full disk behind stdout
        _complain(_out_of_memory(error) if error.errno == errno.ENOMEM else error)
        return 1


def open_standard_streams() -> None:
    """Point each standard stream that is closed (`<&-`) at /dev/null. Otherwise the next file or
    socket would be given its number, and libraries would take it for the terminal.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _complain(text: object) -> None:
    """Print the reason why the program ends, as a log line if logs are JSON."""
    if logs_json():
        logging.getLogger("tinyserve").error("%s", text)
    else:
        print(f"tinyserve: {text}", file=sys.stderr)


def _out_of_memory(error: Exception) -> str:
    return (
        f"out of memory ({error or 'no more is given'}): a smaller model, --quantization, or fewer "
        "--num-blocks and --num-swap-blocks take less"
    )


def run_command(command: str, arguments: object) -> int:
    """Commands are imported when they are run: `--help` and `doctor` need no web framework."""
    import importlib

    module = importlib.import_module(f"tinyserve.cli.{command}")
    code: int = module.run(arguments)
    return code
