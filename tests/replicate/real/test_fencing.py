"""A second instance of a pipeline takes the place of the first, which ends for good and harms nobody."""

from __future__ import annotations

import pytest

from penstock.errors import FencedError
from tests.produce.real.reading import create
from tests.replicate.pair import LIMIT_S, Pair, until
from tests.replicate.real.equality import bootstrap, check_equal, contents
from tests.replicate.test_copying import numbered

PARTITIONS = 2


def test_the_first_of_two_instances_ends_for_good(kafkas: Pair) -> None:
    topic = create(bootstrap(kafkas.source), PARTITIONS)
    kafkas.source.send(topic, numbered(0, 200))
    with kafkas.copying(topic, name=topic) as first:
        until(lambda: sum(one.committed for one in first.stats().partitions.values()) == 200, first)
        with kafkas.copying(topic, name=topic) as second:
            until(lambda: len(second.stats().partitions) == PARTITIONS, second)
            until(lambda: all(one.committed >= 0 for one in second.stats().partitions.values()), second)
            kafkas.source.send(topic, numbered(200, 400))
            with pytest.raises(FencedError, match="another instance took over"):
                first.wait(LIMIT_S)
            assert first.is_over
            until(lambda: sum(one.committed for one in second.stats().partitions.values()) == 400, second)
            kafkas.source.send(topic, numbered(400, 500))
            until(lambda: second.stats().total.messages_copied == 300, second)
    assert first.stats().total.messages_copied >= 200
    check_equal(contents(kafkas.target, topic), contents(kafkas.source, topic))
