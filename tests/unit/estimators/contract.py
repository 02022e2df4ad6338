"""scikit-learn's checks of the estimator contract, with only the excuses that are needed."""

from __future__ import annotations

from sklearn.utils.estimator_checks import check_estimator


def assert_contract(estimator, excused=None, least=40):
    """Run scikit-learn's checks on an estimator; every excused check must fail."""
    excused = excused or {}
    done = check_estimator(estimator, expected_failed_checks=excused, on_skip=None, on_fail=None)
    assert len(done) > least
    failed = {
        entry["check_name"]: entry["exception"] for entry in done if entry["status"] == "failed"
    }
    assert not failed, failed
    assert {entry["check_name"] for entry in done if entry["status"] == "xfail"} == excused.keys()
