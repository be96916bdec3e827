"""What holds for every test."""

from __future__ import annotations

import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors: for the tests only, so a warning never stops somebody's measurement.

    A shell starts what runs in its background with Ctrl-C ignored, and the tests of Ctrl-C would wait for nothing.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("filterwarnings", "error")
