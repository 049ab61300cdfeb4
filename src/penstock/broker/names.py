"""Names of topics: `tenant/namespace/topic`, and flat ones, which live in the default namespace.

A topic has one name by which everybody calls it: the flat one in the default namespace, the full one elsewhere.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.broker.refusals import Refusal, Refused

DEFAULT_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = f"{DEFAULT_TENANT}/default"
NAME_CHARS_MAX: Final = 249
TEXT_CHARS_MAX: Final = 512
"""What cursors and the like may be called."""

_PART = re.compile(r"[a-zA-Z0-9._-]+")
_PARTS = 3


class TopicName(NamedTuple):
    """Where a topic lives and what it is called there."""

    namespace: str
    topic: str

    @property
    def name(self) -> str:
        """What everybody calls it."""
        return self.topic if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{self.topic}"

    @property
    def full(self) -> str:
        """The name in full, whatever the namespace."""
        return f"{self.namespace}/{self.topic}"


def parse_topic(text: str) -> TopicName:
    """The name that a text means, flat or in full; Refused when it is none."""
    parts = text.split("/")
    if len(parts) == 1:
        _check_part(text, "topic name", text)
        return TopicName(DEFAULT_NAMESPACE, text)
    if len(parts) != _PARTS:
        raise Refused(Refusal.BAD_TOPIC_NAME, f"{_shown(text)} is neither topic nor tenant/namespace/topic")
    for part, noun in zip(parts, ("tenant", "namespace", "topic name"), strict=True):
        _check_part(part, noun, text)
    return TopicName(f"{parts[0]}/{parts[1]}", parts[2])


def check_namespace(text: str) -> str:
    """The namespace as it is; Refused when it is not `tenant/namespace`."""
    tenant, slash, namespace = text.partition("/")
    if not slash:
        raise Refused(Refusal.BAD_TOPIC_NAME, f"{_shown(text)} is not tenant/namespace")
    _check_part(tenant, "tenant", text)
    _check_part(namespace, "namespace", text)
    return text


def _check_part(part: str, noun: str, text: str) -> None:
    if not part:
        fault = f"the {noun} is empty"
    elif part in (".", ".."):
        fault = f'the {noun} cannot be "." or ".."'
    elif len(part) > NAME_CHARS_MAX:
        fault = f"the {noun} is longer than {NAME_CHARS_MAX} characters"
    elif not _PART.fullmatch(part):
        fault = f"the {noun} has characters other than letters and digits of ASCII, '.', '_' and '-'"
    else:
        return
    raise Refused(Refusal.BAD_TOPIC_NAME, f"{_shown(text)}: {fault}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= NAME_CHARS_MAX else f"{text[:NAME_CHARS_MAX]}...")
