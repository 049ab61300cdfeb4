"""Bookkeeping that does not add up, and errors that are handed on with their cause."""

from __future__ import annotations

from typing import TypeVar

from penstock.errors import PenstockError

AnyError = TypeVar("AnyError", bound=PenstockError)


class InvariantError(RuntimeError):
    """Something that cannot be was found; the text tells the story.

    A mistake in Penstock, not an outcome that somebody could handle: therefore no `PenstockError`.
    """


def because(error: AnyError, cause: BaseException | None) -> AnyError:
    """The error with its cause, for errors that are handed on and not raised."""
    error.__cause__ = cause
    return error
