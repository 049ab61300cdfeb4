"""The URL of a cluster: which system, and where its brokers listen."""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import ConfigError
from penstock.wire.protocol import Endpoint

PORTS = {"kafka": 9092}
LATER = ("pulsar", "pulsar+ssl", "rocketmq")


class Address(NamedTuple):
    """A cluster, as it is connected to."""

    scheme: str
    endpoints: tuple[Endpoint, ...]

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(map(str, self.endpoints))}"


def read_url(url: str) -> Address:
    """The address that a URL names; without a scheme it is Kafka's."""
    if not isinstance(url, str):
        raise ConfigError(f"url: expected text like kafka://host:9092, found {type(url).__name__}")
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        scheme, rest = "kafka", scheme
    scheme = scheme.lower()
    if scheme in LATER:
        raise ConfigError(f"url: {scheme}:// is not in this version; kafka:// is")
    if scheme not in PORTS:
        raise ConfigError(f"url: expected kafka://host:port, found the scheme {scheme!r}")
    rest = rest.rstrip("/")
    if not rest or any(character in rest for character in "/?#@ "):
        raise ConfigError(f"url: expected {scheme}://host:port,host:port, found {url!r}")
    return Address(scheme, tuple(dict.fromkeys(_endpoint(part.strip(), scheme) for part in rest.split(","))))


def _endpoint(text: str, scheme: str) -> Endpoint:
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ConfigError(f"url: expected [address]:port, found {text!r}")
        port = port[1:]
    else:
        host, _, port = text.partition(":")
    if not host or ":" in port:
        raise ConfigError(f"url: expected host:port, found {text!r}; IPv6 addresses go in brackets")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"url: expected a port from 1 to 65535, found {port!r} in {text!r}")
    return Endpoint(host, int(port) if port else PORTS[scheme])
