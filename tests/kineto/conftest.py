"""Real launchers, as the tests of ``run`` start them."""

from tests.supervise.conftest import launch

__all__ = ["launch"]
