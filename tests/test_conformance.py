"""The conformance suite on the runners of this machine, and the suite's own promise: its list of gaps stays true."""

from __future__ import annotations

import pytest

from hermes_sandbox.testing import RunnerConformance

pytest_plugins = ["pytester"]


class TestNamespaces(RunnerConformance):
    options = {"tier": "namespaces"}


class TestProcess(RunnerConformance):
    options = {"tier": "process"}


def test_a_gap_that_passes_is_a_failure(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from hermes_sandbox.testing import RunnerConformance

        class TestStale(RunnerConformance):
            options = {"tier": "process"}
            gaps = {"test_answer": "stale", "test_every_gap_names_a_test": "stale too"}
        """
    )
    result = pytester.runpytest_subprocess("-k", "test_answer or test_every_gap")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*XPASS(strict)*stale*"])


def test_a_true_gap_is_expected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from hermes_sandbox.testing import RunnerConformance

        class TestHonest(RunnerConformance):
            options = {"tier": "process"}
            gaps = {"test_its_own": "cannot be had", "no_such_test": "a typing mistake"}

            def test_its_own(self):
                raise AssertionError
        """
    )
    result = pytester.runpytest_subprocess("-k", "test_its_own or test_every_gap")
    result.assert_outcomes(xfailed=1, failed=1)
