"""What a real broker refuses: who hears of it, in which words, and that all others are stored, in order."""

from __future__ import annotations

import pytest

from brokers.kafka import KafkaCluster
from penstock import BatchPolicy
from penstock.errors import BatchTooLargeError, ConfigError, MessageTooLargeError, Persisted, RefusedError
from tests.produce.real.conftest import Connect
from tests.produce.real.raw_fetch import stored_batches
from tests.produce.real.reading import LIMIT_S, create, new_topic, read_all

ALONE = BatchPolicy(count_max=1)
TOGETHER = BatchPolicy(delay_ms=500)


def values_of(bootstrap: str, topic: str) -> list[bytes]:
    return [message.value or b"" for message in read_all(bootstrap, topic)]


def test_a_batch_that_is_too_large_is_cut_until_it_passes(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, max_message_bytes="20000")
    values = [b"%03d" % number * 300 for number in range(200)]
    with connect(real_kafka.url) as client:
        producer = client.producer(topic, batch=TOGETHER, compression="none")
        receipts = [producer.send(value, key=b"k", properties={"p": "1"}) for value in values]
        producer.flush(LIMIT_S)
        assert [receipt.result(0).position for receipt in receipts] == list(range(200))
        stats = producer.stats()
        assert (stats.acked, stats.failed) == (200, 0)
    assert values_of(real_kafka.bootstrap, topic) == values
    assert all(len(batch) <= 20_000 for batch in stored_batches(real_kafka.address(1), topic))


def test_a_message_that_is_too_large_fails_alone_and_in_clear_words(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, max_message_bytes="20000")
    values = [b"%03d" % number * 300 for number in range(60)]
    values[17] = b"x" * 30_000
    values[40] = b"y" * 19_960  # with its header a little more than the topic takes
    with connect(real_kafka.url) as client:
        producer = client.producer(topic, batch=TOGETHER, compression="none")
        receipts = [producer.send(value) for value in values]
        producer.flush(LIMIT_S)
        for number in (17, 40):
            error = receipts[number].exception(0)
            assert isinstance(error, BatchTooLargeError)
            assert error.persisted is Persisted.NO
            assert "MESSAGE_TOO_LARGE" in str(error)
            assert "max.message.bytes" in str(error)
        fine = [number for number in range(60) if number not in (17, 40)]
        assert [receipts[number].result(0).position for number in fine] == list(range(58))
        with pytest.raises(MessageTooLargeError, match="message_bytes_max is 1000000"):
            producer.send(b"z" * 1_000_001)
    assert values_of(real_kafka.bootstrap, topic) == [values[number] for number in fine]


def test_one_call_for_many_tells_which_were_too_large(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, max_message_bytes="20000")
    values = [b"%03d" % number * 1000 for number in range(100)]
    values[33] = values[99] = b"x" * 30_000
    with connect(real_kafka.url) as client:
        receipt = client.producer(topic, compression="none").send_many(values)
        errors = receipt.errors(LIMIT_S)
        assert {number: type(error) for number, error in errors.items()} == dict.fromkeys((33, 99), BatchTooLargeError)
        with pytest.raises(BatchTooLargeError):
            receipt.result(0)
    assert values_of(real_kafka.bootstrap, topic) == [value for value in values if len(value) < 30_000]


@pytest.mark.parametrize("policy", [ALONE, TOGETHER], ids=["alone", "together"])
def test_messages_without_a_key_in_a_compacted_topic_fail_and_no_others(
    real_kafka: KafkaCluster, connect: Connect, policy: BatchPolicy
) -> None:
    topic = create(real_kafka.bootstrap, cleanup_policy="compact")
    guilty = {3, 50, 51, 99}
    with connect(real_kafka.url) as client:
        producer = client.producer(topic, batch=policy)
        producer.ready(LIMIT_S)
        receipts = [
            producer.send(b"%d" % number, key=None if number in guilty else b"%d" % number) for number in range(100)
        ]
        producer.flush(LIMIT_S)
        for number in guilty:
            error = receipts[number].exception(0)
            assert isinstance(error, RefusedError)
            assert error.persisted is Persisted.NO
            assert str(error).startswith("INVALID_RECORD: ")
            assert "Compacted topic cannot accept message without key" in str(error)
        fine = [receipt.result(0).position for number, receipt in enumerate(receipts) if number not in guilty]
        assert fine == list(range(96))
        assert (producer.stats().acked, producer.stats().failed) == (96, 4)
        assert producer.send(b"goes on", key=b"k").result(LIMIT_S).position == 96
    expected = [b"%d" % number for number in range(100) if number not in guilty]
    assert values_of(real_kafka.bootstrap, topic) == [*expected, b"goes on"]


def test_a_message_that_is_to_blame_tells_the_brokers_code(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, cleanup_policy="compact")
    with connect(real_kafka.url) as client:
        error = client.producer(topic).send(b"no key").exception(LIMIT_S)
        assert isinstance(error, RefusedError)
        assert error.code == "INVALID_RECORD"


def test_when_all_messages_of_a_batch_are_to_blame_each_hears_it(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, cleanup_policy="compact")
    with connect(real_kafka.url) as client:
        producer = client.producer(topic, batch=TOGETHER)
        errors = producer.send_many([b"v"] * 20).errors(LIMIT_S)
        assert [type(error) for error in errors.values()] == [RefusedError] * 20
        assert all(str(error).startswith("INVALID_RECORD: ") for error in errors.values())
        assert producer.send(b"goes on", key=b"k").result(LIMIT_S).position == 0


def test_a_time_too_far_ahead_fails_with_the_brokers_words(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, message_timestamp_after_max_ms="1000")
    with connect(real_kafka.url) as client:
        producer = client.producer(topic, batch=TOGETHER)
        producer.ready(LIMIT_S)
        receipts = [producer.send(b"%d" % number, event_time=1 << 42 if number == 5 else None) for number in range(10)]
        producer.flush(LIMIT_S)
        error = receipts[5].exception(0)
        assert isinstance(error, RefusedError)
        assert str(error).startswith("INVALID_TIMESTAMP: ")
        assert [receipt.result(0).position for number, receipt in enumerate(receipts) if number != 5] == list(range(9))


def test_a_level_that_the_codec_does_not_have_is_refused_before_anything_is_sent(
    real_kafka: KafkaCluster, connect: Connect
) -> None:
    with connect(real_kafka.url) as client:
        with pytest.raises(ConfigError, match="compression_level: expected 1 to 9 for gzip, found 22"):
            client.producer(new_topic(), compression="gzip", compression_level=22)
        with pytest.raises(ConfigError, match="compression_level: snappy has no levels"):
            client.producer(new_topic(), compression="snappy", compression_level=1)


def test_a_name_that_no_topic_may_have_fails_at_once(real_kafka: KafkaCluster, connect: Connect) -> None:
    with connect(real_kafka.url) as client:
        producer = client.producer("not a name!")
        with pytest.raises(RefusedError, match="INVALID_TOPIC_EXCEPTION"):
            producer.send(b"v").result(LIMIT_S)
        with pytest.raises(RefusedError, match="INVALID_TOPIC_EXCEPTION"):
            producer.ready(LIMIT_S)


def test_the_guilty_ones_are_cut_out_of_one_call_for_many(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 3, cleanup_policy="compact")
    keys = [None if number % 10 == 7 else b"%d" % number for number in range(1000)]
    with connect(real_kafka.url) as client:
        producer = client.producer(topic)
        early = producer.send_many([b"v"] * 1000, keys)  # sent before the partitions are known
        assert set(early.errors(LIMIT_S)) == {number for number in range(1000) if number % 10 == 7}
        later = producer.send_many([b"v"] * 1000, keys)
        assert set(later.errors(LIMIT_S)) == {number for number in range(1000) if number % 10 == 7}
    assert len(read_all(real_kafka.bootstrap, topic)) == 1800
