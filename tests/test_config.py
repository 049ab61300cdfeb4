from __future__ import annotations

import dataclasses
import pickle
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import BatchIo, BatchPolicy, ClientOptions, Options, ProducerOptions, parse, validate
from penstock.config.kinds import Quantity
from penstock.config.options import NOT_OPTIONS, OPTIONS, SPELLINGS, Alias, Option, Scope
from penstock.errors import ConfigError, UnknownOptionError

# Alias, what its users write, the option, what Penstock makes of it: one row for every alias of the table.
ALIASES: list[tuple[str, object, str, object]] = [
    ("client.id", "shop", "client_id", "shop"),
    ("instanceName", "shop", "client_id", "shop"),
    ("buffer.memory", 67_108_864, "total_bytes_max", 67_108_864),
    ("queue.buffering.max.kbytes", "65536", "total_bytes_max", 67_108_864),
    ("memoryLimitBytes", 67_108_864, "total_bytes_max", 67_108_864),
    ("totalBatchMaxBytes", 67_108_864, "total_bytes_max", 67_108_864),
    ("backPressureForAsyncSendSize", 104_857_600, "total_bytes_max", 104_857_600),
    ("receive.message.max.bytes", 1_000_000, "frame_bytes_max", 1_000_000),
    ("max.in.flight.requests.per.connection", "1", "in_flight_max", 1),
    ("max.in.flight", 2, "in_flight_max", 2),
    ("socket.connection.setup.timeout.ms", 5_000, "connect_timeout_ms", 5_000),
    ("connection_timeout_ms", 5_000, "connect_timeout_ms", 5_000),
    ("connectionTimeoutMs", 5_000, "connect_timeout_ms", 5_000),
    ("request.timeout.ms", 5_000, "request_timeout_ms", 5_000),
    ("socket.timeout.ms", 60_000, "request_timeout_ms", 60_000),
    ("requestTimeoutMs", 60_000, "request_timeout_ms", 60_000),
    ("mqClientApiTimeout", 3_000, "request_timeout_ms", 3_000),
    ("retry.backoff.ms", 50, "retry_backoff_ms", 50),
    ("initialBackoffIntervalNanos", 100_000_000, "retry_backoff_ms", 100),
    ("retry.backoff.max.ms", 2_000, "retry_backoff_max_ms", 2_000),
    ("maxBackoffIntervalNanos", "60000000000", "retry_backoff_max_ms", 60_000),
    ("metadata.max.age.ms", 60_000, "metadata_age_max_ms", 60_000),
    ("topic.metadata.refresh.interval.ms", 60_000, "metadata_age_max_ms", 60_000),
    ("autoUpdatePartitionsIntervalSeconds", 60, "metadata_age_max_ms", 60_000),
    ("pollNameServerInterval", 30_000, "metadata_age_max_ms", 30_000),
    ("maxMemoryUsageForBatchIOProducersInBytes", 8_388_608, "io_memory_max", 8_388_608),
    ("request.required.acks", -1, "acks", "all"),
    ("enable.idempotence", "false", "idempotence", False),
    ("delivery.timeout.ms", 2_147_483_647, "delivery_timeout_ms", 2_147_483_647),
    ("message.timeout.ms", 300_000, "delivery_timeout_ms", 300_000),
    ("send_timeout_millis", 40_000, "delivery_timeout_ms", 40_000),
    ("sendTimeoutMs", 40_000, "delivery_timeout_ms", 40_000),
    ("sendMsgTimeout", 40_000, "delivery_timeout_ms", 40_000),
    ("block_if_queue_full", False, "when_full", "fail"),
    ("blockIfQueueFull", "true", "when_full", "wait"),
    ("max.block.ms", 0, "full_timeout_ms", 0),
    ("max.request.size", 2_000_000, "message_bytes_max", 2_000_000),
    ("message.max.bytes", 2_000_000, "message_bytes_max", 2_000_000),
    ("maxMessageSize", 4_194_304, "message_bytes_max", 4_194_304),
    ("compression.type", "zstd", "compression", "zstd"),
    ("compression.codec", "snappy", "compression", "snappy"),
    ("compression_type", "LZ4", "compression", "lz4"),
    ("compressionType", "ZSTD", "compression", "zstd"),
    ("compressType", "NONE", "compression", "none"),
    ("compression.level", "-1", "compression_level", None),
    ("compressLevel", 5, "compression_level", 5),
    ("topic.metadata.propagation.max.ms", 20_000, "unknown_topic_ms", 20_000),
    ("partitioner", "consistent_random", "hash", "crc32"),
    ("transactional.id", "orders-1", "transactional_id", "orders-1"),
    ("transaction.timeout.ms", 10_000, "transaction_timeout_ms", 10_000),
    ("batch.size", 0, "batch_bytes_max", 0),
    ("batching_max_allowed_size_in_bytes", 131_072, "batch_bytes_max", 131_072),
    ("batchingMaxBytes", 131_072, "batch_bytes_max", 131_072),
    ("batchMaxBytes", 32_768, "batch_bytes_max", 32_768),
    ("batch.num.messages", 10_000, "batch_count_max", 10_000),
    ("batching_max_messages", 1_000, "batch_count_max", 1_000),
    ("batchingMaxMessages", 1_000, "batch_count_max", 1_000),
    ("linger.ms", "0.5", "batch_delay_ms", 0.5),
    ("queue.buffering.max.ms", 50, "batch_delay_ms", 50),
    ("batching_max_publish_delay_ms", 10, "batch_delay_ms", 10),
    ("batchingMaxPublishDelayMicros", 1_500, "batch_delay_ms", 1.5),
    ("batchMaxDelayMs", 10, "batch_delay_ms", 10),
    ("restrictSameValuesInBatchProperties", {"region": ["us"]}, "same_properties", {"region": ("us",)}),
    ("maxDelayMillis", 100, "io_delay_ms", 100),
    ("maxBatchSize", 1_048_576, "io_bytes_max", 1_048_576),
    ("queued.max.messages.kbytes", 65_536, "prefetch_bytes_max", 67_108_864),
    ("fetch.max.bytes", 52_428_800, "fetch_bytes_max", 52_428_800),
    ("max.partition.fetch.bytes", 1_048_576, "partition_bytes_max", 1_048_576),
    ("fetch.message.max.bytes", "2000000", "partition_bytes_max", 2_000_000),
    ("fetch.min.bytes", 100_000, "fetch_bytes_min", 100_000),
    ("fetch.max.wait.ms", 100, "fetch_wait_ms", 100),
    ("fetch.wait.max.ms", 100, "fetch_wait_ms", 100),
    ("isolation.level", "read_uncommitted", "isolation", "uncommitted"),
    ("check.crcs", "false", "verify_checksums", False),
    ("exactly.once.source.support", "disabled", "delivery", "at-least-once"),
    ("offset.flush.interval.ms", 60_000, "commit_interval_ms", 60_000),
    ("replicationProducerQueueSize", 1000, "copy_entries_max", 1000),
    ("dispatchThrottlingRatePerReplicatorInMsg", 500, "messages_per_second_max", 500),
    ("dispatchThrottlingRatePerReplicatorInByte", 65_536, "bytes_per_second_max", 65_536),
    ("refresh.topics.interval.seconds", 600, "discover_ms", 600_000),
]
every_option = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)


def value_of(options: Options, name: str) -> Any:
    option, _ = SPELLINGS[name]
    return getattr(getattr(options, option.scope.value), option.attribute)


def refusal(given_options: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as raised:
        parse(given_options)
    return str(raised.value)


class TestTable:
    def test_names_of_options_and_aliases_are_unique(self) -> None:
        names = [option.name for option in OPTIONS]
        aliases = [alias.name for option in OPTIONS for alias in option.aliases]
        assert [name for name, times in Counter(names + aliases).items() if times > 1] == []

    def test_underscores_for_dots_never_name_another_option(self) -> None:
        for option in OPTIONS:
            for alias in option.aliases:
                assert SPELLINGS[alias.name.replace(".", "_")][0] is option

    def test_names_that_are_no_options_are_none(self) -> None:
        spelled = {spelling for name in NOT_OPTIONS for spelling in (name, name.replace(".", "_"))}
        assert spelled.isdisjoint(SPELLINGS)

    @every_option
    def test_every_section_has_the_field_with_the_default_of_the_table(self, option: Option) -> None:
        assert value_of(Options(), option.name) == option.default
        assert option.default is None or option.kind.read(option.default) == option.default

    def test_sections_have_no_field_without_a_row(self) -> None:
        for scope in Scope:
            fields = {field.name for field in dataclasses.fields(getattr(Options(), scope.value))}
            assert fields == {option.attribute for option in OPTIONS if option.scope is scope}

    def test_measured_defaults(self) -> None:
        options = Options()
        assert (options.batch.bytes_max, options.batch.delay_ms, options.client.in_flight_max) == (262_144, 5, 5)

    def test_the_defaults_fit_together(self) -> None:
        validate(Options())
        assert parse({}) == Options()

    def test_every_alias_has_an_example(self) -> None:
        assert [example[0] for example in ALIASES] == [alias.name for option in OPTIONS for alias in option.aliases]


class TestAliases:
    @pytest.mark.parametrize(("alias", "given_value", "name", "value"), ALIASES, ids=[row[0] for row in ALIASES])
    def test_an_alias_means_the_option(self, alias: str, given_value: object, name: str, value: object) -> None:
        room_for_timeouts = {} if name == "delivery_timeout_ms" else {"delivery_timeout_ms": 900_000}
        for spelled in {alias, alias.replace(".", "_")} - {name}:
            assert value_of(parse({spelled: given_value, **room_for_timeouts}), name) == value

    def test_all_of_a_java_producers_usual_properties_are_taken(self) -> None:
        options = parse(
            {
                "client.id": "shop",
                "acks": "-1",
                "linger.ms": "20",
                "batch.size": "65536",
                "buffer.memory": "67108864",
                "compression.type": "zstd",
                "enable.idempotence": "true",
                "max.in.flight.requests.per.connection": "5",
            }
        )
        assert options.producer == ProducerOptions(compression="zstd")
        assert options.batch == BatchPolicy(bytes_max=65_536, delay_ms=20)
        assert options.client == ClientOptions(client_id="shop", total_bytes_max=67_108_864)

    @pytest.mark.parametrize(("given_value", "meant"), [("all", "all"), (-1, "all"), ("1", "leader"), (0, "none")])
    def test_acks_are_taken_as_kafka_writes_them(self, given_value: object, meant: str) -> None:
        assert parse({"acks": given_value, "idempotence": False}).producer.acks == meant

    def test_giving_an_option_twice_names_both(self) -> None:
        assert refusal({"linger.ms": 1, "batch_delay_ms": 1}) == (
            "linger.ms and batch_delay_ms are the same option, batch_delay_ms: give one of them"
        )
        assert "batch.size and batchMaxBytes are the same option, batch_bytes_max" in refusal(
            {"batch.size": 1, "batchMaxBytes": 2}
        )

    def test_penstocks_own_name_is_never_converted(self) -> None:
        assert parse({"compression_level": -1}).producer.compression_level == -1
        assert parse({"compression.level": -1}).producer.compression_level is None

    def test_partitioners_that_do_something_else_are_refused(self) -> None:
        assert "murmur2_random: murmur2, consistent_random: crc32" in refusal({"partitioner": "murmur2"})


class TestUnknown:
    @pytest.mark.parametrize(
        ("spelled", "nearest"),
        [
            ("lingr.ms", "linger.ms (batch_delay_ms)"),
            ("batch_byte_max", "batch_bytes_max"),
            ("BATCH_DELAY_MS", "batch_delay_ms"),
            ("lingerMs", "linger_ms (batch_delay_ms)"),
            ("compression.zstd.level", "compression.level (compression_level)"),
            ("enable.idempotency", "enable.idempotence (idempotence)"),
        ],
    )
    def test_an_unknown_option_names_the_nearest(self, spelled: str, nearest: str) -> None:
        with pytest.raises(UnknownOptionError) as raised:
            parse({spelled: 1})
        assert str(raised.value) == f"there is no option {spelled!r}; the nearest is {nearest}"

    def test_nothing_is_suggested_when_nothing_is_near(self) -> None:
        with pytest.raises(UnknownOptionError, match="there is no option 'zzzzzz', nor one with a name like it"):
            parse({"zzzzzz": 1})

    @pytest.mark.parametrize("name", NOT_OPTIONS)
    def test_familiar_names_that_are_no_options_say_what_to_do(self, name: str) -> None:
        for spelled in {name, name.replace(".", "_")}:
            with pytest.raises(UnknownOptionError) as raised:
                parse({spelled: 1})
            assert str(raised.value) == f"{spelled} is no option of Penstock: {NOT_OPTIONS[name]}"


class TestValues:
    @pytest.mark.parametrize(
        ("name", "given_value", "value"),
        [
            ("batch_bytes_max", "262144", 262_144),
            ("batch_bytes_max", "256 KiB", 262_144),
            ("batch_bytes_max", "256kib", 262_144),
            ("batch_bytes_max", "1 MB", 1_000_000),
            ("batch_bytes_max", " 2 MiB ", 2_097_152),
            ("batch_delay_ms", 0.25, 0.25),
            ("batch_delay_ms", 5.0, 5),
            ("batch_delay_ms", "0.25", 0.25),
            ("batch_delay_ms", "1.5 s", 1_500),
            ("delivery_timeout_ms", "2 min", 120_000),
            ("batch_count_max", "100", 100),
            ("compression_level", "-5", -5),
            ("compression_level", None, None),
            ("idempotence", "Yes", True),
            ("compression", " Gzip ", "gzip"),
            ("listed_properties", "region, version", ("region", "version")),
            ("listed_properties", ["a", "b", "a"], ("a", "b")),
            ("listed_properties", {"b", "a"}, ("a", "b")),
            ("listed_properties", "", ()),
            ("same_properties", "region=us,eu; version=1,2", {"region": ("us", "eu"), "version": ("1", "2")}),
            ("same_properties", {"region": {"us", "eu"}}, {"region": ("eu", "us")}),
            ("same_properties", {"region": "us"}, {"region": ("us",)}),
            ("same_properties", {"region": ["", "us"]}, {"region": ("", "us")}),
            ("same_properties", "", {}),
        ],
    )
    def test_values_and_their_text_are_read(self, name: str, given_value: object, value: object) -> None:
        read = value_of(parse({name: given_value}), name)
        assert read == value
        assert type(read) is type(value)

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("client_id", ""),
            ("client_id", "two\nlines"),
            ("client_id", "x" * 256),
            ("client_id", 7),
            ("client_id", None),
            ("batch_bytes_max", True),
            ("batch_bytes_max", -1),
            ("batch_bytes_max", 1.0),
            ("batch_bytes_max", "1.5 KiB"),
            ("batch_bytes_max", "1 KiX"),
            ("batch_bytes_max", ""),
            ("batch_count_max", 0),
            ("batch_count_max", "1 KiB"),
            ("batch_count_max", "٣"),
            ("batch_delay_ms", False),
            ("batch_delay_ms", float("nan")),
            ("batch_delay_ms", float("inf")),
            ("batch_delay_ms", -0.1),
            ("batch_delay_ms", "1e3"),
            ("batch_delay_ms", None),
            ("delivery_timeout_ms", 0),
            ("idempotence", 1),
            ("idempotence", "perhaps"),
            ("acks", True),
            ("acks", 2),
            ("compression", "ZLib"),
            ("compression", None),
            ("listed_properties", "a,,b"),
            ("listed_properties", [""]),
            ("listed_properties", [1]),
            ("listed_properties", 1),
            ("same_properties", {"version": [1, 2]}),
            ("same_properties", {"region": []}),
            ("same_properties", {"": ["us"]}),
            ("same_properties", {1: ["us"]}),
            ("same_properties", ["region"]),
            ("same_properties", "region"),
            ("same_properties", "region=us; region=eu"),
        ],
    )
    def test_a_wrong_value_is_named_with_what_is_allowed(self, name: str, wrong: object) -> None:
        told = refusal({name: wrong})
        assert told.startswith(f"{name}=")
        assert told.endswith(f" is not possible: takes {SPELLINGS[name][0].kind.allowed}")

    def test_a_wrong_value_is_named_as_the_user_spelled_it(self) -> None:
        assert refusal({"linger.ms": "soon"}) == (
            "linger.ms='soon' is not possible: it stands for batch_delay_ms, which takes milliseconds from 0 to 900000"
        )
        assert refusal({"queue.buffering.max.kbytes": 0}) == (
            "queue.buffering.max.kbytes=0 is not possible: it stands for total_bytes_max (in KiB), "
            "which takes bytes from 1 to 1 TiB"
        )

    def test_a_huge_value_is_not_repeated_in_full(self) -> None:
        assert len(refusal({"client_id": "x" * 100_000})) < 200
        assert len(refusal({"batchingMaxPublishDelayMicros": 10**4000})) < 250

    @pytest.mark.parametrize(
        "option", [option for option in OPTIONS if isinstance(option.kind, Quantity)], ids=lambda option: option.name
    )
    def test_both_ends_of_a_range_are_allowed_and_no_more(self, option: Option) -> None:
        assert isinstance(option.kind, Quantity)
        for end in (option.kind.low, option.kind.high):
            assert option.kind.read(end) == end
            assert option.kind.read(str(end)) == end
        for beyond in (option.kind.low - 1, option.kind.high + 1):
            with pytest.raises(ValueError, match=str(beyond)):
                option.kind.read(beyond)

    @given(
        st.sampled_from(sorted(SPELLINGS)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=5,
        ),
    )
    def test_any_value_gives_a_value_or_a_config_error(self, spelled: str, value: object) -> None:
        try:
            options = parse({spelled: value})
        except UnknownOptionError:
            raise
        except ConfigError:
            return
        option, _ = SPELLINGS[spelled]
        read = value_of(options, option.name)
        assert value_of(parse({option.name: read}), option.name) == read

    @given(st.sampled_from(["KiB", "MiB", "kB", "MB"]), st.integers(0, 1000))
    def test_sizes_with_units_are_what_they_say(self, suffix: str, number: int) -> None:
        factor = {"KiB": 1024, "MiB": 1024**2, "kB": 1000, "MB": 1000**2}[suffix]
        options = parse({"io_bytes_max": f"{number + 1} {suffix}"})
        assert options.io.bytes_max == (number + 1) * factor


class TestScopesAndBase:
    def test_an_option_of_another_scope_says_where_it_belongs(self) -> None:
        with pytest.raises(ConfigError) as raised:
            parse({"buffer.memory": 1}, scopes=[Scope.PRODUCER, Scope.BATCH])
        assert str(raised.value) == "buffer.memory (total_bytes_max) is an option of the client: give it there"

    def test_what_is_not_given_stays_as_in_the_base(self) -> None:
        base = parse({"client_id": "shop", "batch_delay_ms": 50, "acks": "leader", "idempotence": False})
        options = parse({"linger.ms": 1}, scopes=[Scope.PRODUCER, Scope.BATCH], base=base)
        assert options == dataclasses.replace(base, batch=BatchPolicy(delay_ms=1))
        assert base.batch.delay_ms == 50

    def test_a_combination_with_the_base_is_checked(self) -> None:
        base = parse({"acks": "leader", "idempotence": False})
        with pytest.raises(ConfigError, match="idempotence needs acks=all"):
            parse({"idempotence": True}, base=base)


class TestCombinations:
    @pytest.mark.parametrize(
        ("together", "wrong", "remedy"),
        [
            ({"acks": "leader"}, "idempotence needs acks=all, not leader", "set acks=all, or idempotence=false"),
            ({"transactional_id": "t", "idempotence": False}, "transactional_id needs idempotence", "idempotence=true"),
            ({"retry_backoff_ms": 2_000}, "retry_backoff_ms=2000 is above retry_backoff_max_ms=1000", "lower the"),
            ({"send_timeout_millis": 30_004}, "delivery_timeout_ms=30004 leaves no time", "raise it, or lower"),
            ({"request_timeout_ms": 120_000}, "request_timeout_ms = 120005", "lower request_timeout_ms"),
            ({"io_delay_ms": 60_000, "batch_delay_ms": 40_000}, "= 130000", "raise it"),
            (
                {"message_bytes_max": "64 MiB"},
                "message_bytes_max=67108864 is above total_bytes_max",
                "when_full=direct",
            ),
            ({"batch_bytes_max": "64 MiB"}, "batch_bytes_max=67108864 is above total_bytes_max", "lower it"),
            (
                {"same_properties": {"region": ["us"]}, "listed_properties": ["region"]},
                "region in same_properties and in listed_properties",
                "take it out of listed_properties",
            ),
        ],
    )
    def test_what_cannot_work_together_is_told_with_its_remedy(
        self, together: dict[str, object], wrong: str, remedy: str
    ) -> None:
        told = refusal(together)
        assert wrong in told
        assert remedy in told.partition(": ")[2]
        assert "\n" not in told

    @pytest.mark.parametrize(
        "together",
        [
            {"acks": "leader", "idempotence": False},
            {"in_flight_max": 1_000, "idempotence": False},
            {"send_timeout_millis": 30_005},
            {"retry_backoff_ms": 1_000},
            {"message_bytes_max": "64 MiB", "when_full": "direct"},
            {"same_properties": {"region": ["us"]}, "listed_properties": ["version"]},
        ],
    )
    def test_what_just_works_together_is_taken(self, together: dict[str, object]) -> None:
        parse(together)

    def test_all_problems_are_told_at_once(self) -> None:
        told = refusal({"acks": "none", "retry_backoff_ms": 5_000, "total_bytes_max": 1})
        assert [line.split()[0] for line in told.splitlines()] == [
            "idempotence",
            "retry_backoff_ms=5000",
            "message_bytes_max=1000000",
            "batch_bytes_max=262144",
        ]


class TestPolicies:
    def test_a_policy_made_by_hand_is_read_by_the_table(self) -> None:
        regions = {"region": ["us", "eu"]}
        policy = BatchPolicy(same_properties=regions, delay_ms=2.0, listed_properties=["version"])
        regions["region"].append("asia")
        assert policy.same_properties == {"region": ("us", "eu")}
        assert policy.listed_properties == ("version",)
        assert (
            policy
            == parse({"same_properties": "region=us,eu", "batch_delay_ms": 2, "listed_properties": "version"}).batch
        )

    def test_a_wrong_policy_names_field_and_option(self) -> None:
        with pytest.raises(ConfigError) as raised:
            BatchIo(-1)
        assert str(raised.value) == (
            "delay_ms=-1 is not possible: it stands for io_delay_ms, which takes milliseconds from 0 to 60000"
        )

    def test_batch_io_takes_delay_then_bytes(self) -> None:
        assert BatchIo(100, 1_000_000) == BatchIo(delay_ms=100, bytes_max=1_000_000)
        assert BatchIo(100).enabled
        assert not BatchIo().enabled

    def test_policies_are_values(self) -> None:
        policy = BatchPolicy(same_properties={"region": ["us"]})
        assert policy == BatchPolicy(same_properties={"region": ("us",)})
        assert hash(policy) == hash(BatchPolicy(same_properties={"region": ("us",)}))
        assert policy != BatchPolicy()
        assert pickle.loads(pickle.dumps(parse({}, base=Options(batch=policy)))).batch == policy
        with pytest.raises(dataclasses.FrozenInstanceError):
            policy.bytes_max = 1  # type: ignore[misc]

    def test_two_policies_share_no_mapping(self) -> None:
        assert BatchPolicy().same_properties is not BatchPolicy().same_properties


def test_rows_and_aliases_are_values() -> None:
    assert Alias("a", "Kafka") == Alias("a", "Kafka")
    with pytest.raises(dataclasses.FrozenInstanceError):
        OPTIONS[0].default = 1  # type: ignore[misc]
