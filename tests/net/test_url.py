from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.net.url import Address, read_url
from penstock.wire.protocol import Endpoint


@pytest.mark.parametrize(
    ("url", "endpoints"),
    [
        ("kafka://one:1", [("one", 1)]),
        ("kafka://one:1,two:2", [("one", 1), ("two", 2)]),
        ("one:1", [("one", 1)]),
        ("one:1,two", [("one", 1), ("two", 9092)]),
        ("localhost", [("localhost", 9092)]),
        ("KAFKA://one", [("one", 9092)]),
        ("kafka://one:1/", [("one", 1)]),
        ("  kafka://one:1  ", [("one", 1)]),
        ("kafka://one:1,one:1", [("one", 1)]),
        ("kafka://[::1]:5", [("::1", 5)]),
        ("kafka://[fe80::1],10.0.0.1:7", [("fe80::1", 9092), ("10.0.0.1", 7)]),
        ("kafka://one:65535", [("one", 65535)]),
    ],
)
def test_a_url_names_a_system_and_its_brokers(url: str, endpoints: list[tuple[str, int]]) -> None:
    assert read_url(url) == Address("kafka", tuple(Endpoint(*endpoint) for endpoint in endpoints))


@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl", "rocketmq", "PULSAR"])
def test_systems_that_are_not_served_yet_are_recognised(scheme: str) -> None:
    with pytest.raises(ConfigError, match=r"url: .*:// is not in this version; kafka:// is"):
        read_url(f"{scheme}://host:1")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://host:1", "found the scheme 'http'"),
        ("://host:1", "found the scheme ''"),
        ("", "expected kafka://host:port,host:port, found ''"),
        ("kafka://", "expected kafka://host:port,host:port"),
        ("kafka:///", "expected kafka://host:port,host:port"),
        ("kafka://host:1/topic", "expected kafka://host:port,host:port"),
        ("kafka://user@host:1", "expected kafka://host:port,host:port"),
        ("kafka://host:1?a=b", "expected kafka://host:port,host:port"),
        ("kafka://:1", "expected host:port, found ':1'"),
        ("kafka://one,,two", "expected host:port, found ''"),
        ("kafka://::1", "IPv6 addresses go in brackets"),
        ("kafka://[::1", "expected .address.:port"),
        ("kafka://[::1]5", "expected .address.:port"),
        ("kafka://host:0", "expected a port from 1 to 65535, found '0'"),
        ("kafka://host:65536", "found '65536'"),
        ("kafka://host:x", "found 'x'"),
        ("kafka://host:٣", "expected a port from 1 to 65535"),
        ("kafka://host:-1", "found '-1'"),
        (b"kafka://host:1", "expected text like kafka://host:9092, found bytes"),
        (None, "found NoneType"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(url: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read_url(url)


def test_an_address_reads_as_it_was_written() -> None:
    for url in ("kafka://one:1,two:2", "kafka://[::1]:5"):
        assert str(read_url(url)) == url
        assert read_url(str(read_url(url))) == read_url(url)
