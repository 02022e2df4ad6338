"""Job files that attack the parser: each is one line, exit code 2, in bounded time and memory."""

import pytest

from elasticml.errors import ConfigError, shown
from elasticml.jobs.job_file import apply_override
from elasticml.jobs.job_spec import JobSpec
from elasticml.jobs.yaml_text import DEPTH_MAX, TEXT_BYTES_MAX, VALUES_MAX, dump_yaml, load_yaml

_FOLD = "[" + ", ".join(["*a{0}"] * 9) + "]"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{k + 1}: &a{k + 1} {_FOLD.format(k)}\n" for k in range(9)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{k + 1}: &a{k + 1} {{<<: {_FOLD.format(k)}}}\n" for k in range(9)
)
WIDE = "data: {format: [" + "y, " * 1000 + "y]}\n"
NO_ALIAS = "an alias (*) of another value, wanted the value itself"

ATTACKS = {
    "aliases of aliases": (BOMB, NO_ALIAS),
    "merged aliases": (MERGES, NO_ALIAS),
    "long lists": ("a: [" + "1, " * VALUES_MAX + "1]\n", f"more than {VALUES_MAX} values"),
    "deep": ("a: " + "[" * 5000 + "]" * 5000 + "\n", f"nested more than {DEPTH_MAX} deep"),
    "deep mappings": ("{a: " * 5000 + "1" + "}" * 5000, f"nested more than {DEPTH_MAX} deep"),
    "a list in itself": ("a: &a [*a]\n", NO_ALIAS),
    "6,000 digits": ("seed: " + "9" * 6000 + "\n", "a number of 6000 characters"),
    "6,000 hex digits": ("seed: 0x" + "f" * 6000 + "\n", "a number of 6002 characters"),
    "30 February": ("name: 2024-02-30\n", "'2024-02-30' cannot be read"),
    "25 o'clock": ("name: 2024-02-03 25:00:00\n", "cannot be read"),
    "two megabytes": ("# " + "x" * 2 * TEXT_BYTES_MAX, f"more than {TEXT_BYTES_MAX} bytes"),
    "a tag of Python": ("a: !!python/object/apply:os.system [id]\n", "could not determine"),
    "bad binary": ("a: !!binary 'a'\n", "failed to decode base64"),
    "a wide value": (WIDE, "data.format: got"),
}


@pytest.mark.parametrize(("text", "expected"), ATTACKS.values(), ids=ATTACKS)
def test_an_attack_is_one_short_line_that_says_where(tmp_path, text, expected):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        JobSpec.from_file(path, ["algorithm.name=batch_gradient"])
    assert expected in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 1000


def test_overrides_have_the_same_limits():
    with pytest.raises(ConfigError, match="the value is not YAML") as caught:
        apply_override({}, "seed=" + "9" * 6000)
    assert len(caught.value.message) < 500


def test_what_is_not_an_attack_is_read_as_yaml_has_it():
    value = load_yaml("a: {k: [1, 2.5, yes, ~, 0x10, 2024-02-29]}\n", "text")
    assert value["a"]["k"][:5] == [1, 2.5, True, None, 16]


def test_a_value_that_occurs_twice_is_written_twice():
    shared = {"rows": [1, 2]}
    twice = {"train": shared, "test": shared}
    assert load_yaml(dump_yaml(twice), "text") == twice


def test_values_in_messages_are_cut_in_bounded_time():
    nested: list = []
    for _ in range(60):
        nested = [nested, nested]  # 2^60 values, of which repr would write each
    assert len(shown(nested)) <= 60
    assert len(shown({"k" * 1000: "v" * 10**7})) <= 60
    assert shown(16**6000) == "<an integer of 24001 bits>"
