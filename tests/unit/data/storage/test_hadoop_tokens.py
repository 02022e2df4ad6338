"""Token files written by Hadoop's own Credentials class (3.4.2)."""

import base64

import pytest

from elasticml.data.storage.hadoop_tokens import hdfs_token, read_tokens
from elasticml.errors import ConfigError

#: Three tokens and a secret: of an HDFS, of the timeline service, and of a name service, the
#: last with an identifier of 200 zero bytes, so that its length takes two bytes.
FILE = base64.b64decode(
    "SERUUwADBW90aGVyAmlkAnB3FUhERlNfREVMRUdBVElPTl9UT0tFTg0xMC4wLjAuMjo4MDIwCHRpbWVsaW5lAgECAQMZ"
    "VElNRUxJTkVfREVMRUdBVElPTl9UT0tFTg0xMC4wLjAuMTo4MTg4CmhhLWhkZnM6bnOPyA"
    + "A" * 263
    + "AAABnNlY3JldBVIREZTX0RFTEVHQVRJT05fVE9LRU4KaGEtaGRmczpucwEBawEJ"
)
OF_HDFS = "AmlkAnB3FUhERlNfREVMRUdBVElPTl9UT0tFTg0xMC4wLjAuMjo4MDIw"


def test_tokens_are_read_as_hadoop_writes_them():
    tokens = read_tokens(FILE, "container_tokens")
    assert [(token.kind, token.service) for token in tokens] == [
        ("HDFS_DELEGATION_TOKEN", "10.0.0.2:8020"),
        ("TIMELINE_DELEGATION_TOKEN", "10.0.0.1:8188"),
        ("HDFS_DELEGATION_TOKEN", "ha-hdfs:ns"),
    ]
    assert tokens[0].text == OF_HDFS
    assert tokens[2].text.startswith("j8gAAAA")
    assert tokens[2].text.endswith("AAZzZWNyZXQVSERGU19ERUxFR0FUSU9OX1RPS0VOCmhhLWhkZnM6bnM")


def test_the_token_of_a_file_system_is_chosen_by_its_service():
    tokens = read_tokens(FILE, "container_tokens")
    assert hdfs_token(tokens, ["10.0.0.2:8020"]) == OF_HDFS
    assert hdfs_token(tokens, ["ha-hdfs:ns"]) == tokens[2].text
    assert hdfs_token(tokens, ["elsewhere:8020"]) is None
    assert hdfs_token(tokens[:2], ["namenode.example:8020"]) == OF_HDFS
    assert hdfs_token(tokens[1:2], ["10.0.0.1:8188"]) is None


@pytest.mark.parametrize("length", [5, 6, 20, 120, 200])
def test_a_truncated_file_is_refused(length):
    with pytest.raises(ConfigError, match="container_tokens is cut short; write it again"):
        read_tokens(FILE[:length], "container_tokens")


def test_a_file_of_another_format_is_refused():
    with pytest.raises(
        ConfigError, match=r"is not a Hadoop token file .*; write it with hdfs fetchdt"
    ):
        read_tokens(b"HDTS\x01protobuf", "container_tokens")
