"""The workers reported to a client when a job starts."""

from __future__ import annotations

from types import SimpleNamespace

from elasticml.jobs.handle import workers_of


def identity(n_workers):
    """Answer like a scheduler, with as many of its workers as requested."""
    all_of_them = {"tcp://a": {}, "tcp://b": {}}
    return {"workers": all_of_them if n_workers == -1 else {}}


class Looking:
    """A client that reads its scheduler's workers after every answer; there are none."""

    def __init__(self):
        self.scheduler = SimpleNamespace(identity=identity)

    def sync(self, ask, **given):
        answer = ask(**given)
        self.kept = identity(n_workers=0)
        return answer

    def scheduler_info(self, n_workers):
        self.sync(self.scheduler.identity, n_workers=n_workers)
        return self.kept


def test_an_empty_list_of_workers_between_request_and_answer_is_harmless():
    client = Looking()
    assert sorted(workers_of(client)) == ["tcp://a", "tcp://b"]
    assert client.scheduler_info(n_workers=-1) == {"workers": {}}
