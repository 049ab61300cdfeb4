"""Names of topics."""

from __future__ import annotations

import pytest

from penstock.broker.names import TopicName, check_namespace, parse_topic
from penstock.broker.refusals import Refusal, Refused


@pytest.mark.parametrize(
    ("text", "name", "full"),
    [
        ("orders", "orders", "public/default/orders"),
        ("public/default/orders", "orders", "public/default/orders"),
        ("acme/sales/orders", "acme/sales/orders", "acme/sales/orders"),
        ("__consumer_offsets", "__consumer_offsets", "public/default/__consumer_offsets"),
        ("a.b-c_D9", "a.b-c_D9", "public/default/a.b-c_D9"),
        ("...", "...", "public/default/..."),
        ("x" * 249, "x" * 249, f"public/default/{'x' * 249}"),
    ],
)
def test_a_name_is_flat_in_the_default_namespace_and_full_elsewhere(text: str, name: str, full: str) -> None:
    assert parse_topic(text).name == name
    assert parse_topic(text).full == full
    assert parse_topic(full) == parse_topic(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the topic name is empty"),
        (".", 'the topic name cannot be "." or ".."'),
        ("..", 'the topic name cannot be "." or ".."'),
        ("x" * 250, "the topic name is longer than 249 characters"),
        ("a b", "the topic name has characters other than letters"),
        ("ü", "the topic name has characters other than letters"),
        ("a\n", "the topic name has characters other than letters"),
        ("\u0661", "the topic name has characters other than letters"),
        ("a/b", "is neither topic nor tenant/namespace/topic"),
        ("a/b/c/d", "is neither topic nor tenant/namespace/topic"),
        ("/b/c", "the tenant is empty"),
        ("a//c", "the namespace is empty"),
        ("a/b/", "the topic name is empty"),
        ("a/../c", 'the namespace cannot be "." or ".."'),
    ],
)
def test_other_names_are_refused(text: str, fault: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_topic(text)
    assert refused.value.reason is Refusal.BAD_TOPIC_NAME
    assert fault in refused.value.text


def test_a_refusal_of_a_long_name_is_short() -> None:
    with pytest.raises(Refused) as refused:
        parse_topic("x" * 100_000)
    assert len(refused.value.text) < 400


def test_namespaces() -> None:
    assert check_namespace("acme/sales") == "acme/sales"
    assert parse_topic("acme/sales/orders") == TopicName("acme/sales", "orders")
    for text in ("acme", "acme/", "/sales", "a/b/c", "a/.."):
        with pytest.raises(Refused):
            check_namespace(text)
