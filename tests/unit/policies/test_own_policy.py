"""The example policy of the documentation works as described."""

from __future__ import annotations

import re
from pathlib import Path

from elasticml.policies.validation import entry_of
from tests.policy_world import PolicyWorld

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "policies.md"


def test_example_of_the_page_releases_the_members_beyond_its_number():
    (text,) = re.findall(r"```python\n(# at_most.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    made: dict = {}
    exec(compile(text, str(PAGE), "exec"), made)
    policy = made["AtMost"](members=2)
    world = PolicyWorld([], dict.fromkeys(range(5), 1.0))
    (retired,) = policy.suggest(world.view())
    assert len(retired.members) == 3
    assert made["AtMost"](members=5).suggest(world.view()) == []
    assert entry_of(policy) == {"name": "at_most", "members": 2}
