"""Which workers a client is told of when a job begins."""

from __future__ import annotations

from types import SimpleNamespace

from elasticml.jobs.handle import workers_of


def identity(n_workers):
    """Answer as a scheduler does, with as many of its workers as it is asked for."""
    all_of_them = {"tcp://a": {}, "tcp://b": {}}
    return {"workers": all_of_them if n_workers == -1 else {}}


class Looking:
    """A client that looks at its scheduler, without workers, whenever it has had an answer."""

    def __init__(self):
        self.scheduler = SimpleNamespace(identity=identity)

    def sync(self, ask, **given):
        answer = ask(**given)
        self.kept = identity(n_workers=0)
        return answer

    def scheduler_info(self, n_workers):
        self.sync(self.scheduler.identity, n_workers=n_workers)
        return self.kept


def test_a_look_without_workers_between_question_and_answer_does_no_harm():
    client = Looking()
    assert sorted(workers_of(client)) == ["tcp://a", "tcp://b"]
    assert client.scheduler_info(n_workers=-1) == {"workers": {}}
