"""The exceptions of the package: one root class, typed fields, all picklable.

Examples
--------
>>> issubclass(em.errors.SubmissionError, em.errors.ElasticmlError)
True
"""

from __future__ import annotations

import re
import reprlib
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

#: A line of a Java stack trace, or the line that abbreviates the rest.
_JAVA_FRAME = re.compile(
    r"^\s+(at [^\s()]+\([^()]*\)|\.\.\. \d+ (more|common frames omitted))$", re.M
)

#: Longest traceback that is kept of another process, in characters; the end says most.
TRACEBACK_MAX: Final = 8192


#: Longest foreign value in a message, in characters.
SHOWN_CHARACTERS_MAX: Final = 60

#: Longest text of a foreign exception in a message, in characters; its beginning says most.
QUOTED_CHARACTERS_MAX: Final = 300

#: Characters that break a line, change a terminal, or have no encoding in UTF-8.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)

#: ``reason`` of the error of a scheduler that does not know a job.
UNKNOWN_JOB = "unknown job"


class ElasticmlError(Exception):
    """Base class of all errors that elasticml raises deliberately.

    The message is one line: what failed, what was found, what was expected, and the remedy;
    characters that would break the line are escaped. Fields are passed as keyword arguments, become
    attributes and survive pickling.

    Examples
    --------
    >>> issubclass(em.errors.ConfigError, em.errors.ElasticmlError)
    True
    """

    def __init__(self, message: str, **fields: Any) -> None:
        message = _printable(message)
        super().__init__(message)
        self.message = message
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)
        if fields.get("traceback"):
            self.add_note(f"In the other process:\n{fields['traceback']}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.fields))


def _rebuild(kind: type[ElasticmlError], message: str, fields: dict[str, Any]) -> ElasticmlError:
    return kind(message, **fields)


class ConfigError(ElasticmlError):
    """The job, its settings or the environment are invalid; nothing was started.

    Examples
    --------
    >>> em.CoCoA(loss="hing")
    Traceback (most recent call last):
    elasticml.errors.ConfigError: CoCoA.loss: got 'hing'...
    """


class DataError(ElasticmlError):
    """The data are invalid; the message names the file, line and column if they are known.

    Examples
    --------
    >>> with open("words.svm", "w") as file:
    ...     print("1 one", file=file)
    >>> em.LinearSVC().fit("words.svm")
    Traceback (most recent call last):
    elasticml.errors.DataError: ...
    """


class SubmissionError(ElasticmlError):
    """A cluster rejected the job or its containers.

    Examples
    --------
    >>> issubclass(em.errors.SubmissionError, em.errors.ElasticmlError)
    True
    """


class ProtocolError(ElasticmlError):
    """Two processes violated the protocol between them.

    Examples
    --------
    >>> issubclass(em.errors.ProtocolError, em.errors.ElasticmlError)
    True
    """


class LocalProtocolError(ProtocolError):
    """This side broke the protocol: a bug in elasticml."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol: it runs another version, or is not elasticml."""


class JobFailedError(ElasticmlError):
    """The job failed at run time; fields: ``member``, ``exchange``, ``reason`` if known.

    ``traceback`` is the traceback of another process, if an exception there ended the job.

    Examples
    --------
    >>> try:
    ...     em.Job(em.CoCoA(), em.read_svmlight("/none.svm"), stop=stop).run(client)
    ... except em.errors.ElasticmlError as error:
    ...     print(type(error).__name__)
    ConfigError
    """


class NotEnoughMembersError(ElasticmlError):
    """Fewer members than the job needs; fields: ``have``, ``need``, ``waited_s``.

    Examples
    --------
    >>> issubclass(em.errors.NotEnoughMembersError, em.errors.ElasticmlError)
    True
    """


class ControlFlowError(Exception):
    """User code raised what its caller would take for control flow: the cause of this error.

    ``SystemExit`` and ``KeyboardInterrupt`` end the process of an event loop, a cancellation ends
    the task that awaits the call, and a future refuses ``StopIteration``.
    """


@contextmanager
def prefix_errors(what: str) -> Iterator[None]:
    """Prefix the message of any error raised in the block with its subject, such as data.test."""
    try:
        yield
    except ElasticmlError as error:
        raise type(error)(f"{what}: {error.message}", **error.fields) from error


class _ShortRepr(reprlib.Repr):
    """Formats values for messages in bounded time and length."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 6
        self.maxstring = self.maxother = self.maxlong = SHOWN_CHARACTERS_MAX

    def repr_int(self, x: int, level: int) -> str:
        """Format an integer; Python refuses to write out very long ones."""
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"<an integer of {x.bit_length()} bits>"


_short_repr: Final = _ShortRepr().repr


def shown(value: object) -> str:
    """Format a foreign value for a message: its ``repr``, cut to 60 characters.

    Takes bounded time for values of any size, as ``repr`` does not.

    >>> shown([[[[1]]], "a" * 100])
    "[[[[...]]], 'aaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaa..."
    """
    text = _short_repr(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 3] + "..."


def _printable(text: str) -> str:
    def escape(found: re.Match[str]) -> str:
        return found[0].encode("unicode_escape").decode()

    return _UNPRINTABLE.sub(escape, text)


def one_line(what: object) -> str:
    r"""Format a foreign exception or a text as one printable line.

    An exception of a library may quote a whole file: its text is cut to 300 characters, and it
    becomes its type if it has no text. Lines of a Java stack trace are dropped.

    >>> one_line("refused:\nthe quota is exceeded\n\tat org.apache.Foo.bar(Foo.java:1)\n")
    'refused: the quota is exceeded'
    >>> one_line(ValueError("expected 2 columns, got 3:\n\x00\x1b[2J" + "a" * 300_000))[:40]
    'expected 2 columns, got 3: \\x00\\x1b[2Jaa'
    """
    try:
        text = str(what)
    except Exception:  # of a user's class
        text = ""
    is_foreign = isinstance(what, BaseException) and not isinstance(what, ElasticmlError)
    if is_foreign:
        text = text[:TRACEBACK_MAX]
    text = _printable(" ".join(_JAVA_FRAME.sub("", text).split()))
    if is_foreign and len(text) > QUOTED_CHARACTERS_MAX:
        text = text[: QUOTED_CHARACTERS_MAX - 3] + "..."
    return text or (type(what).__name__ if isinstance(what, BaseException) else "")


def place_of(error: BaseException) -> str:
    """Return where an exception was raised, such as ``huber.py:42 in compute``; "" if unknown.

    The last frame of users' code counts: neither of this package nor of an installed one.
    """
    return users_place(traceback.extract_tb(error.__traceback__))


def users_place(frames: traceback.StackSummary) -> str:
    """Return the last of these frames that is of users' code, as :func:`place_of` does."""
    if not frames:
        return ""
    libraries = (str(Path(__file__).parent), *map(sysconfig.get_path, ("stdlib", "purelib")))
    users = [frame for frame in frames if not frame.filename.startswith((*libraries, "<"))]
    frame = (users or list(frames))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"


def how_to_install(extra: str = "") -> str:
    """Return the remedy for a missing package; elasticml is on no package index."""
    what = f"'.[{extra}]'" if extra else "."
    return f"in a clone of elasticml: pip install {what}"


def fault_of(error: BaseException, who: str, **fields: Any) -> JobFailedError:
    """Return the error that ends a job because of an exception in a part of it.

    Parameters
    ----------
    error : BaseException
        What a solver, a trainer or a thread raised.
    who : str
        Which part failed, as the subject of the message.
    """
    # A generator's StopIteration has become a RuntimeError, which lacks its frames.
    if isinstance(error, ControlFlowError) or isinstance(error.__cause__, StopIteration):
        error = error.__cause__ or error
    text = f"{who} failed: {type(error).__name__}: {one_line(error)}"
    try:
        place, lines = place_of(error), "".join(traceback.format_exception(error))
    except MemoryError:  # a report without them is better than none
        place = lines = ""
    fields = {"traceback": lines[-TRACEBACK_MAX:], "host_fault": host_fault(error), **fields}
    return JobFailedError(f"{text} ({place})" if place else text, **fields)


def host_fault(error: BaseException) -> str | None:
    """Return the kind of an error that may be the fault of one host, such as "OSError", or None.

    Its disk or its memory may be full, its mount missing, or its limit of threads reached.
    """
    kinds: tuple[type[BaseException], ...] = (OSError, MemoryError)
    if error.args == ("can't start new thread",):  # by Python, without a type of its own
        kinds = (*kinds, RuntimeError)
    return next((kind.__name__ for kind in kinds if isinstance(error, kind)), None)


def error_to_dict(error: ElasticmlError) -> dict[str, Any]:
    """Serialize an error to plain values, so that another process can raise it."""
    fields = {k: v for k, v in error.fields.items() if isinstance(v, (str, int, float))}
    return {"kind": type(error).__name__, "message": error.message, "fields": fields}


def error_from_dict(body: dict[str, Any]) -> ElasticmlError:
    """Deserialize the output of ``error_to_dict``; an unknown type becomes ``ElasticmlError``."""
    kind = globals().get(body["kind"])
    if not (isinstance(kind, type) and issubclass(kind, ElasticmlError)):
        kind = ElasticmlError
    return kind(body["message"], **body.get("fields", {}))
