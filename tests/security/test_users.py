"""The attacks' own ground: a job of another user is found and judged by root as any other."""

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.security.conftest import Popen, User

pytestmark = pytest.mark.live


def test_root_judges_another_users_job(
    mallory: User, start_job: Callable[..., Popen], root_types: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Without an attack the verdict names the process of the other user."""
    job = start_job(mallory)

    answer = root_types("attach", str(job.pid), "--json")

    assert json.loads(answer.stdout)["wait_chain"][0]["pid"] == job.pid
