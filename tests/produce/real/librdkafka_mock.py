"""librdkafka's mock cluster, driven by its C interface in the library that confluent-kafka brings along.

It is three or more brokers on loopback that know topics, leaders, producers' identities and groups. Its faults are
injected by calls: answers with an error instead of storing, delays, brokers that go away, leaders that move. What it
does not do is judge sequence numbers: what is sent twice is stored twice, and what was refused is stored later.

    new -> rd_kafka_new, rd_kafka_mock_cluster_new;  destroy in the opposite order

Error codes are Kafka's own; TRANSPORT makes a broker close the connection instead of answering.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import confluent_kafka

PRODUCE, METADATA, INIT_PRODUCER_ID = 0, 3, 22
TRANSPORT = -195
PRODUCER_TYPE = 0
ALL_BROKERS = -1
NO_LEADER = -1

# what each function returns, and takes after the cluster
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "cluster_bootstraps": (c_char_p, ()),
    "cluster_destroy": (None, ()),
    "push_request_errors_array": (None, (c_int16, c_size_t, POINTER(c_int))),
    "clear_request_errors": (None, (c_int16,)),
    "topic_create": (c_int, (c_char_p, c_int, c_int)),
    "topic_set_error": (None, (c_char_p, c_int)),
    "partition_set_leader": (c_int, (c_char_p, c_int32, c_int32)),
    "broker_set_down": (c_int, (c_int32,)),
    "broker_set_up": (c_int, (c_int32,)),
    "broker_set_rtt": (c_int, (c_int32, c_int)),
}


def _library() -> ctypes.CDLL:
    """The librdkafka that confluent-kafka itself has loaded."""
    mapped = Path("/proc/self/maps").read_text() if Path("/proc/self/maps").exists() else ""
    found = re.search(r"\S*librdkafka\S*", mapped)
    if found is None:
        folder = Path(confluent_kafka.__file__).parent
        found_files = [*folder.parent.glob("confluent_kafka.libs/librdkafka*"), *folder.rglob("librdkafka*")]
        return ctypes.CDLL(str(found_files[0]))
    return ctypes.CDLL(found[0])


class MockCluster:
    """So many mock brokers, numbered from 1, until it is closed."""

    def __init__(self, brokers: int = 3) -> None:
        self._library = _library()
        self._library.rd_kafka_conf_new.restype = c_void_p
        self._library.rd_kafka_conf_set.argtypes = (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)
        self._library.rd_kafka_new.restype = c_void_p
        self._library.rd_kafka_new.argtypes = (c_int, c_void_p, c_char_p, c_size_t)
        self._library.rd_kafka_mock_cluster_new.restype = c_void_p
        self._library.rd_kafka_mock_cluster_new.argtypes = (c_void_p, c_int)
        self._library.rd_kafka_destroy.argtypes = (c_void_p,)
        why = ctypes.create_string_buffer(256)
        settings = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(settings, b"log_level", b"3", why, len(why))
        self._handle = self._library.rd_kafka_new(PRODUCER_TYPE, settings, why, len(why))
        assert self._handle, why.value.decode()
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, brokers)
        assert self._cluster
        self.brokers = range(1, brokers + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call("cluster_destroy")
        self._library.rd_kafka_destroy(self._handle)

    @property
    def bootstrap(self) -> str:
        """Where all its brokers listen."""
        found: bytes = self._call("cluster_bootstraps")
        return found.decode()

    @property
    def url(self) -> str:
        return f"kafka://{self.bootstrap}"

    def create(self, topic: str, partitions: int, replicas: int = 1) -> None:
        self._checked("topic_create", topic.encode(), partitions, replicas)

    def answer_with(self, codes: Sequence[int], request: int = PRODUCE) -> None:
        """Answer the next requests of a kind with these errors, one each, and do nothing of what they ask."""
        self._call("push_request_errors_array", request, len(codes), (c_int * len(codes))(*codes))

    def answer_truly(self, request: int = PRODUCE) -> None:
        """Forget the errors that were not answered yet."""
        self._call("clear_request_errors", request)

    def fail_topic(self, topic: str, code: int) -> None:
        """Say this of a topic whenever somebody looks it up; 0 for nothing."""
        self._call("topic_set_error", topic.encode(), code)

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        self._checked("partition_set_leader", topic.encode(), partition, broker)

    def down(self, broker: int = ALL_BROKERS) -> None:
        """Close a broker's connections and let none in."""
        self._checked("broker_set_down", broker)

    def up(self, broker: int = ALL_BROKERS) -> None:
        self._checked("broker_set_up", broker)

    def delay(self, ms: int, broker: int = ALL_BROKERS) -> None:
        """Answer this much later."""
        self._checked("broker_set_rtt", broker, ms)

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._library, f"rd_kafka_mock_{name}")
        function.restype, rest = SIGNATURES[name]
        function.argtypes = (c_void_p, *rest)
        return function(self._cluster, *arguments)

    def _checked(self, name: str, *arguments: Any) -> None:
        code = self._call(name, *arguments)
        assert code == 0, f"{name}{arguments}: {code}"


__all__ = ["ALL_BROKERS", "INIT_PRODUCER_ID", "METADATA", "NO_LEADER", "PRODUCE", "TRANSPORT", "MockCluster"]
