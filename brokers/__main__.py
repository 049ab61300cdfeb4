"""The command line `python -m brokers`.

    up [--nodes N] [--port P]   start one that stays up in the background, print its URL      (make brokers)
    down                        end exactly what `up` started                                 (make brokers-stop)
    status                      what runs and where
    fetch [SET ...]             bring the locked jars into the cache, of all sets when none is named
    lock [SET ...]              resolve the jars of `sets.toml` anew                          (make lock-jars)

Results go to standard output, what it waits for and errors to standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from brokers import jars, lock, service
from brokers.errors import BrokerError


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks and return an exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(COMMANDS[options.command](options))
    except BrokerError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def say(text: str) -> None:
    """Tell the person who waits what is going on."""
    sys.stderr.write(f"brokers: {text}\n")
    sys.stderr.flush()


def show(text: str) -> None:
    """Print a result."""
    sys.stdout.write(f"{text}\n")


def up(options: argparse.Namespace) -> int:
    """Start a cluster in the background and print its URL."""
    state = service.up(options.system, options.nodes, options.port, say)
    show(f"{state.url}\n  logs: {' '.join(state.logs)}\n  `make brokers-stop` ends it")
    return 0


def down(options: argparse.Namespace) -> int:
    """End the cluster in the background."""
    ended = service.down(options.system, say)
    show(f"{options.system} is stopped" if ended else f"no {options.system} of this checkout was running")
    return 0


def status(options: argparse.Namespace) -> int:
    """Print what runs."""
    state = service.read_state(options.system)
    if state is None:
        show(f"{options.system}: not running")
        return 1
    show(f"{options.system}: {state.url}, {state.nodes} node(s), kept by process {state.pid}")
    return 0


def keep(options: argparse.Namespace) -> int:
    """Be the process that holds a cluster for `up`."""
    return service.keep(options.system, options.nodes, options.port)


def fetch(options: argparse.Namespace) -> int:
    """Bring jars into the cache."""
    for name in options.sets or sorted(path.stem for path in jars.LOCKS.glob("*.lock")):
        files = jars.ensure(name, say)
        show(f"{name}: {len(files)} jars in {files[0].parent}")
    return 0


def make_locks(options: argparse.Namespace) -> int:
    """Resolve sets of jars anew."""
    lock.lock(options.sets, say)
    return 0


COMMANDS = {"up": up, "down": down, "status": status, "keep": keep, "fetch": fetch, "lock": make_locks}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m brokers", description="Real brokers for a developer.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "down", "status", "keep"):
        command = commands.add_parser(name, help=COMMANDS[name].__doc__)
        command.add_argument("system", nargs="?", default="kafka", choices=sorted(service.SYSTEMS))
        if name in ("up", "keep"):
            command.add_argument("--nodes", type=_count, default=1, help="how many nodes (1 to 9)")
            command.add_argument("--port", type=_port, help="node 1's port; the next nodes take the following ones")
    for name in ("fetch", "lock"):
        commands.add_parser(name, help=COMMANDS[name].__doc__).add_argument("sets", nargs="*", metavar="SET")
    return parser


def _count(text: str) -> int:
    if text not in tuple("123456789"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 9")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 1 to 65535")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
