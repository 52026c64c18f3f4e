"""Secrets do not get through, and what a verdict needs does."""

import time

import msgspec
import pytest

from perfwatch.recording.redaction import REDACTED, redact, redact_command, redact_tree

SECRETS = {
    "--api-key=s3cr3tvalue": "s3cr3tvalue",
    "--token hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123": "hf_AbCdEf",
    "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567": "0123456789abcdef",
    "0123456789abcdef0123456789abcdef01234567": "0123456789abcdef",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "bPxRfiCY",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "bPxRfiCY",
    "Authorization: Bearer abc.def-123456789": "abc.def",
    "curl -H 'Authorization: Bearer zzzzzzzzzzzz9'": "zzzzzzzz",
    "https://bob:hunter2@host.example/x": "hunter2",
    "redis://:only-a-password@cache:6379": "only-a-password",
    'password="two words here"': "two words",
    "PASSWORD=12345678": "12345678",
    '{"client_secret": "abc123"}': "abc123",
    "{'db_password': 'abc123'}": "abc123",
    "https://blob.example/c?sv=2022&sig=AbC%2Fdef%3D": "AbC%2Fdef",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----": "MIIEow",
    "--hf-token=1234567": "1234567",
    "--auth=s3cr3tvalue": "s3cr3tvalue",
}
# Options whose names are words of prose too.
WEAK = "--wandb_key --wandb-key --key --pass --pwd --openai-key --ssh_key --license_key --auth --http_auth".split()
HARMLESS = [
    "at wrapper (lidar_tokens.py:58), in api_key.py:7:12 and secret_rules.cpp:33",
    "python train.py --max-tokens 4096 --num_tokens=1000000 --pad-token-id 0 --lr 3e-4",
    "--tokenizer meta-llama/Llama-3-8B --key-size 64",
    "--key-padding same --passes many --token-length long --num-keys few --key 3 --auth none --pass -v --author me",
    "/root/.cache/huggingface/hub/models--x/blobs/0123456789abcdef0123456789abcdef01234567",
    "/data/imagenet/train/n01440764/ILSVRC2012_val_00000293.JPEG",
    "_MultiProcessingDataLoaderIter._next_data (torch/utils/data/dataloader.py:1500)",
    "GPU-5f2b3c4d-1234-5678-9abc-def012345678",
    "pipe:[12345] 10.0.0.1:29500 socket:[991]",
    "KeyError: 'loss'",
    "waiting for the lock /tmp/compile.lock, key: rank 3",
    "/var/tmp/perfwatch-0/20261120-115124-733",
]


@pytest.mark.parametrize(("text", "secret"), SECRETS.items())
def test_a_secret_does_not_get_through(text: str, secret: str) -> None:
    """In none of the forms in which command lines, environments and logs hold them."""
    assert secret not in redact(text)
    assert REDACTED in redact(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_a_verdict_needs_gets_through(text: str) -> None:
    """Options, paths, frames and sentences stay as they are."""
    assert redact(text) == text


@pytest.mark.parametrize("text", SECRETS)
def test_twice_is_the_same_as_once(text: str) -> None:
    """A bundle redacts again what the recording has redacted already."""
    assert redact(redact(text)) == redact(text)


def test_the_word_after_a_secret_option_is_hidden() -> None:
    """A command line comes in words, and the secret is a word of its own."""
    command = redact_command(["python", "t.py", "--token", "abc", "--lr", "0.1", "--password", "1234", "-v"])

    assert command == ("python", "t.py", "--token", REDACTED, "--lr", "0.1", "--password", REDACTED, "-v")


@pytest.mark.parametrize("option", WEAK)
def test_an_option_with_a_weak_name_hides_its_value_in_both_forms(option: str) -> None:
    """Unless that is a number or a switch."""
    for value, shown in (("s3cr3tvalue", REDACTED), ("12", "12"), ("off", "off")):
        assert redact_command([option, value, "-v"]) == (option, shown, "-v")
        assert redact_command([f"{option}={value}", "-v"]) == (f"{option}={shown}", "-v")
        assert redact(f"{option} {value} -v") == f"{option} {shown} -v"


def test_an_option_after_a_secret_option_is_not_its_value() -> None:
    """``--token --verbose``: nothing was given for the token."""
    assert redact_command(["--token", "--verbose"]) == ("--token", "--verbose")


def test_every_string_of_a_tree_is_redacted() -> None:
    """However deep; numbers and structure stay."""
    tree = {"a": [1, {"password": "p", "n": 3}], "command": ["x", "--secret", "s3"], "t": (None, "api_key=zzz")}

    assert redact_tree(tree) == {
        "a": [1, {"password": REDACTED, "n": 3}],
        "command": ["x", "--secret", REDACTED],
        "t": [None, f"api_key={REDACTED}"],
    }


def test_redacted_json_is_still_json() -> None:
    """Lines of log text inside a recording may themselves hold JSON with escaped quotes."""
    line = msgspec.json.encode({"text": '{"token": "abc\\"def", "x": 1}'})

    assert b"abc" not in msgspec.json.encode(redact_tree(msgspec.json.decode(line)))


def seconds(text: str) -> float:
    """CPU time, the best of a few."""
    took = []
    for _ in range(5):
        began = time.thread_time()
        redact(text)
        took.append(time.thread_time() - began)
    return min(took)


def test_a_long_hostile_line_is_redacted_in_linear_time() -> None:
    """Sixteen thousand characters of nearly matching text must not hold up the watcher: it would take minutes.

    Four times as much takes four times as long; sixteen times, where each character looks at all that follow.
    """
    for part in ("a-b_" * 1000, "token" * 750, "://" * 1250, '"' * 4000, "eyJ" * 1250, "-" * 4000):
        assert seconds(4 * part) < 8 * seconds(part), part[:5]
