"""The exceptions of the package: one root, typed fields, every one of them picklable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: A line of a Java stack trace, and what stands for further ones.
_JAVA_FRAME = re.compile(
    r"^\s+(at [^\s()]+\([^()]*\)|\.\.\. \d+ (more|common frames omitted))$", re.M
)


class ElasticmlError(Exception):
    """Root of all errors that elasticml raises on purpose.

    The message says what went wrong, what was found, what was wanted and what to do about it, in
    one line. Fields are keyword arguments, kept as attributes and through pickling.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.fields))


def _rebuild(kind: type[ElasticmlError], message: str, fields: dict[str, Any]) -> ElasticmlError:
    return kind(message, **fields)


class ConfigError(ElasticmlError):
    """The job, its settings or the environment are wrong; nothing was started."""


class DataError(ElasticmlError):
    """The data are wrong; the message names file, line and column where they are known."""


class SubmissionError(ElasticmlError):
    """A cluster refused the job or its containers."""


class ProtocolError(ElasticmlError):
    """Two processes disagree on the protocol."""


class LocalProtocolError(ProtocolError):
    """This side broke the protocol: a bug of ours."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol: another version, or a foreign process."""


class JobFailedError(ElasticmlError):
    """The job failed at run time; fields: ``member``, ``exchange``, ``reason`` where known."""


class NotEnoughMembersError(ElasticmlError):
    """Fewer members than the job needs; fields: ``have``, ``need``, ``waited_s``."""


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Begin the message of any error that comes out with what it is about, such as data.test."""
    try:
        yield
    except ElasticmlError as error:
        raise type(error)(f"{what}: {error.message}", **error.fields) from error


def one_line(what: object) -> str:
    r"""Write another's error, or a text, in one line; an error that says nothing is its kind.

    What Java says of where an error came from is left out.

    >>> one_line("refused:\nthe quota is exceeded\n\tat org.apache.Foo.bar(Foo.java:1)\n")
    'refused: the quota is exceeded'
    """
    text = " ".join(_JAVA_FRAME.sub("", str(what)).split())
    return text or (type(what).__name__ if isinstance(what, BaseException) else "")


def error_to_dict(error: ElasticmlError) -> dict[str, Any]:
    """Write an error as plain values, for a process that raises it again."""
    fields = {k: v for k, v in error.fields.items() if isinstance(v, (str, int, float))}
    return {"kind": type(error).__name__, "message": error.message, "fields": fields}


def error_from_dict(body: dict[str, Any]) -> ElasticmlError:
    """Make the error again that ``error_to_dict`` wrote; an unknown kind becomes the root."""
    kind = globals().get(body["kind"])
    if not (isinstance(kind, type) and issubclass(kind, ElasticmlError)):
        kind = ElasticmlError
    return kind(body["message"], **body.get("fields", {}))
