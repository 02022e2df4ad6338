"""Errors of other libraries, in one line."""

import pytest

from elasticml import errors
from elasticml.errors import QUOTED_CHARACTERS_MAX, DataError, fault_of, one_line

JAVA = """Failed to submit application, exception:
The DiskSpace quota of /user/me is exceeded: quota = 1 KB but diskspace consumed = 2 KB
\tat org.apache.hadoop.hdfs.Quota.verifyQuota(DirectoryWithQuotaFeature.java:212)
\tat org.apache.hadoop.ipc.RpcEngine2$Server$Invoker.call(RpcEngine2.java:5)
\tat java.base/javax.security.auth.Subject.doAs(Subject.java:439)
\tat jdk.proxy2/jdk.proxy2.$Proxy12.create(Unknown Source)
\t... 12 more
"""


def test_a_java_stack_trace_is_left_out():
    # A full HDFS refused a cluster in 3 kB of stack frames.
    assert one_line(RuntimeError(JAVA)) == (
        "Failed to submit application, exception: The DiskSpace quota of /user/me is exceeded: "
        "quota = 1 KB but diskspace consumed = 2 KB"
    )


def test_words_that_only_look_like_a_stack_stay():
    assert one_line("no file\n at the place (see above)") == "no file at the place (see above)"


def test_an_error_without_a_message_is_its_class():
    assert one_line(TimeoutError()) == "TimeoutError"
    assert one_line("") == ""


@pytest.mark.parametrize(
    "character", ["\n", "\r", "\x00", "\x1b", "\x85", "\u2028", "\u202e", "\udcff"]
)
def test_the_bytes_of_a_file_in_a_text_are_cut_and_escaped(character):
    # pyarrow quotes the row that it cannot parse, whatever the row holds.
    text = one_line(ValueError("Expected 5 columns, got 7: " + character * 20_000))
    assert text.startswith("Expected 5 columns, got 7:")
    assert len(text) <= QUOTED_CHARACTERS_MAX
    assert text.isprintable()


def test_elasticml_s_own_message_is_one_line_and_is_not_cut():
    error = DataError("a\nb.csv: " + "wanted a number; " * 100)
    assert error.message.startswith("a\\nb.csv: ")
    assert "\n" not in str(error)
    assert one_line(error) == error.message.strip()


def test_a_fault_is_reported_by_a_process_without_memory_for_its_traceback(monkeypatch):
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(errors.traceback, "extract_tb", no_memory)
    found = fault_of(RuntimeError("can't start new thread"), "member 1.1")
    assert found.message == "member 1.1 failed: RuntimeError: can't start new thread"
