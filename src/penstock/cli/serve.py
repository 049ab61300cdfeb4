"""`penstock serve`: the embedded broker as a process of its own, until it is told to stop."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from penstock import __version__
from penstock.broker.launch import (
    ADDRESS_FILE,
    HTTP_PORT,
    KAFKA_PORT,
    Address,
    check_filters,
    join_host,
    read_settings,
    remove_address,
    split_setting,
)
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.broker.server.service import Service
    from penstock.broker.settings import BrokerSettings

NO_HTTP: Final = -1
SUITABLE: Final = -2
LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_BOUND = re.compile(r"address \(.*, (\d+)\)")
"""Where Python says which of the ports it was."""


class Launch(argparse.Namespace):
    """What the command line asks for."""

    data: Path
    host: str
    port: int
    http_port: int
    advertised: tuple[str, int] | None
    fsync: str | None
    settings: list[str]
    ready_file: Path | None
    log_level: str
    stop_on_eof: bool


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"penstock serve: {message}; --help lists the options\n")


def main(arguments: Sequence[str]) -> None:
    """Read the command line and serve."""
    serve(_parser().parse_args(arguments, Launch()))


def serve(launch: Launch) -> None:
    """Serve until a signal, or the end of the standard input if that was asked for."""
    from penstock.broker.server.service import ServerSettings, Service

    logging.basicConfig(level=launch.log_level.upper(), format=LOG_FORMAT, stream=sys.stderr)
    given = [*launch.settings, *([] if launch.fsync is None else [f"fsync={launch.fsync}"])]
    settings, groups = read_settings(launch.data, dict(map(split_setting, given)))
    check_filters(settings, None)
    server = ServerSettings(launch.host, launch.port, launch.advertised, _http_port(launch))
    files = [launch.data / ADDRESS_FILE, *([] if launch.ready_file is None else [launch.ready_file])]
    if launch.ready_file is not None:
        remove_address(launch.ready_file)

    def ready(service: Service) -> None:
        address = Address(service.address, None if service.http_port is None else (launch.host, service.http_port))
        for file in files:
            address.write(file)
        if launch.stop_on_eof:
            _stop_by_eof(service)
        _tell(address, settings)

    try:
        Service(settings, server, groups=groups).serve(ready)
    except OSError as error:
        raise PenstockError(_told(error, launch)) from error
    else:
        for file in files:
            remove_address(file)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "penstock serve", description="Run the embedded broker until Ctrl-C or SIGTERM.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="the data folder, made if it is not there")
    add("--host", default="127.0.0.1", help="the address to listen on; by default only this machine reaches it")
    add("--port", type=_port, default=KAFKA_PORT, help="the port for Kafka's clients; %(default)s; 0 for a free one")
    http = f"the port for statistics, metrics and health; {HTTP_PORT} beside port {KAFKA_PORT}, else a free one"
    add("--http-port", type=_http, default=SUITABLE, metavar="PORT|none", help=http)
    add("--fsync", metavar="always|group|system", help="when entries are made durable; group")
    several = "a setting of docs/broker-settings.md; as often as needed"
    add("--set", action="append", default=[], dest="settings", metavar="NAME=VALUE", help=several)
    add("--advertised", type=_host, metavar="HOST:PORT", help="where clients are told to find the broker")
    add("--ready-file", type=Path, metavar="FILE", help="written when clients can connect, and removed at the end")
    add("--log-level", choices=LEVELS, default="warning", metavar="LEVEL", help=", ".join(LEVELS))
    add("--stop-on-eof", action="store_true", help=argparse.SUPPRESS)
    return parser


def _http_port(launch: Launch) -> int | None:
    """By default beside Kafka's usual port; a free one where that is not the usual, or two brokers would meet."""
    if launch.http_port == SUITABLE:
        return HTTP_PORT if launch.port == KAFKA_PORT else 0
    return None if launch.http_port == NO_HTTP else launch.http_port


def _tell(address: Address, settings: BrokerSettings) -> None:
    http = "no HTTP" if address.http is None else f"http://{join_host(address.http)}/stats /metrics /health /ready"
    sys.stdout.write(
        f"penstock {__version__} serves {address.url}\n"
        f"data {settings.folder.resolve()}, fsync {settings.fsync}\n"
        f"{http}\n"
    )
    sys.stdout.flush()


def _stop_by_eof(service: Service) -> None:
    """For whoever starts it and may vanish: a process that is gone holds the other end no more."""
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 1 << 16):
            service.loop.unwatch_descriptor(descriptor)
            service.stop()

    service.loop.watch_descriptor(descriptor, readable)


def _told(error: OSError, launch: Launch) -> str:
    named = _BOUND.search(error.strerror or "")
    where = f"port {named[1]}" if named else f"port {launch.port}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{where} of {launch.host} is in use"
        case errno.EADDRNOTAVAIL:
            return f"{launch.host} is no address of this machine"
        case errno.EACCES | errno.EPERM:
            return f"{where} of {launch.host} may not be used by this user"
        case socket.EAI_NONAME | socket.EAI_AGAIN:
            return f"{launch.host!r} is no address"
        case _:
            return f"the broker cannot start: {error}"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, found {text!r}")
    return int(text)


def _http(text: str) -> int:
    return NO_HTTP if text.lower() == "none" else _port(text)


def _host(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise argparse.ArgumentTypeError(f"expected host:port, found {text!r}")
    return host.strip("[]"), _port(port)
