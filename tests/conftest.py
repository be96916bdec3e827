"""What holds for every test."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors: for the tests only, so a warning never stops somebody's measurement."""
    config.addinivalue_line("filterwarnings", "error")
