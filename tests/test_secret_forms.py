"""Forms in which a secret stands on a command line, and words that look like it and must stay readable."""

import base64
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfwatch.recording.redaction import LONGEST_TEXT, REDACTED, redact, redact_command
from perfwatch.recording.secret_rules import _catalogue

PASSWORD = "hunter2hunter2"
RANDOM = "Zq3vT8kLx2Rw9YbN5mHc7DfJ"  # 24 letters, as a generator draws them
HEX = "9f86d081884c7d659a2feaa0c55ad015"
UUID = "5f2b3c4d-1a2b-4c3d-8e9f-0123456789ab"
BASIC = base64.b64encode(f"bob:{PASSWORD}".encode()).decode()
BLOB = base64.b64encode(bytes(range(7, 250, 3))).decode()
# Of each: the words, parted by one blank unless the form is a list, and what must not be seen.
HIDDEN: dict[str, tuple[str | list[str], str]] = {
    # the forms that survived
    "discord webhook": (f"notify.py https://discord.com/api/webhooks/123456789012345678/{RANDOM}{HEX}", RANDOM),
    "vault": (f"serve hvs.CAESI{RANDOM}", RANDOM),
    "vault batch": (f"serve hvb.AAAAAQ{RANDOM}{RANDOM}", RANDOM),
    "twilio": (f"text.py SK{HEX}", HEX),
    "sendgrid": (f"mail.py SG.{RANDOM[:22]}.{RANDOM}{RANDOM[:19]}", RANDOM[:22]),
    "sendgrid, short": (f"mail.py SG.{RANDOM}.x", RANDOM),
    "comet, 25 letters": (f"train.py --comet {RANDOM}x", RANDOM),
    "comet, lower case": ("train.py --comet q3vt8klx2rw9ybn5mhc7dfj1ab", "q3vt8klx"),
    "random word": (f"train.py {RANDOM}ab", RANDOM),
    "uuid after an option": (f"train.py --neptune-api-token {UUID}", UUID),
    "uuid after a vendor": (f"train.py --neptune {UUID}", UUID),
    "uuid after a weak name": (f"train.py --auth={UUID}", UUID),
    "a personal access token by name": ("train.py --pat q3vt8klxrw", "q3vt8klxrw"),
    "a web token by name": ("train.py --jwt abc.def.ghi", "abc.def.ghi"),
    "uuid after login": (f"comet login {UUID}", UUID),
    "basic as two words": (["x", "Basic", BASIC], BASIC),
    "basic header in three words": (["curl", "-H", "Authorization:", "Basic", BASIC], BASIC),
    "sshpass": (["sshpass", "-p", PASSWORD, "ssh", "node1"], PASSWORD),
    "sshpass joined": (["sshpass", f"-p{PASSWORD}", "ssh", "node1"], PASSWORD),
    "curl -u": (["curl", "-u", f"bob:{PASSWORD}", "https://x.example"], PASSWORD),
    "curl -u joined": (["curl", f"-ubob:{PASSWORD}"], PASSWORD),
    "curl --user=": (["curl", f"--user=bob:{PASSWORD}"], PASSWORD),
    "curl --proxy-user": (["curl", "--proxy-user", f"bob:{PASSWORD}"], PASSWORD),
    "mysql -p": (["mysql", "-u", "root", f"-p{PASSWORD}", "db"], PASSWORD),
    "mysqldump by path below sudo": (["sudo", "/usr/bin/mysqldump", f"-p{PASSWORD}"], PASSWORD),
    "--pw=": (f"train.py --pw={PASSWORD}", PASSWORD),
    "--db-pw": (f"train.py --db-pw {PASSWORD}", PASSWORD),
    "--creds": (f"train.py --creds bob:{PASSWORD}", PASSWORD),
    # other idioms of command lines
    "--password with blanks": (["train.py", "--password", f"two {PASSWORD}"], PASSWORD),
    "--password=": (["train.py", f"--password={PASSWORD}"], PASSWORD),
    "--password a number": (["train.py", "--password", "12345678"], "12345678"),
    "docker login": (["docker", "login", "-u", "ann", "-p", PASSWORD, "r.example"], PASSWORD),
    "mongo": (["mongosh", "-u", "ann", "-p", PASSWORD], PASSWORD),
    "redis": (["redis-cli", "-h", "cache", "-a", PASSWORD], PASSWORD),
    "ldap": (["ldapsearch", "-D", "cn=x", "-w", PASSWORD], PASSWORD),
    "smbclient": (["smbclient", "-U", f"ann%{PASSWORD}"], PASSWORD),
    "openssl": (["openssl", "rsa", "-passin", f"pass:{PASSWORD}"], PASSWORD),
    "keytool": (["keytool", "-storepass", PASSWORD], PASSWORD),
    "putty": (["plink", "-pw", PASSWORD, "node1"], PASSWORD),
    "zip": (["unzip", "-P", PASSWORD, "data.zip"], PASSWORD),
    "lines of a shell": (["sh", "-c", f"cd /x && mysql -u root -p{PASSWORD} && python train.py"], PASSWORD),
    "a quoted password in a shell's line": (["sh", "-c", f"sshpass -p 'a {PASSWORD}' ssh node1"], PASSWORD),
    "env": (["env", f"WANDB_API_KEY={HEX}abcdef01", "python", "train.py"], HEX),
    "environment in Hydra's form": (f"train.py +logger.api_key={RANDOM}", RANDOM),
    "header": (["curl", "-H", f"X-Api-Key: {PASSWORD}"], PASSWORD),
    "digest header": (["curl", "-H", f'Authorization: Digest username="x", response="{PASSWORD}"'], PASSWORD),
    "cookie": (["curl", "-H", f"Cookie: a=b; session={PASSWORD}"], PASSWORD),
    "bearer in JSON": (f'{{"Authorization": "Bearer {PASSWORD}"}}', PASSWORD),
    "URL with a user": (f"train.py postgresql://trainer:{PASSWORD}@db/x", PASSWORD),
    "URL with a slash in the password": (f"train.py postgresql://trainer:x/{PASSWORD}@db/x", PASSWORD),
    "URL with a token alone": (f"git clone https://{RANDOM}@git.example/x", RANDOM),
    "user and password without a scheme": (f"train.py --db trainer:{PASSWORD}@db.example.com/x", PASSWORD),
    "git over https": (f"pip install git+https://oauth2:{PASSWORD}@gitlab.example/x.git", PASSWORD),
    "slack webhook": (f"--hook https://hooks.slack.com/services/T0000/B0000/{RANDOM}", RANDOM),
    "slack workflow": (f"--hook https://hooks.slack.com/triggers/T0000/123/{HEX}", HEX),
    "teams webhook": (f"x https://a.webhook.office.com/webhookb2/{UUID}@{UUID}/IncomingWebhook/{HEX}/{UUID}", HEX),
    "power automate": (
        f"x https://prod-1.westeurope.logic.azure.com/workflows/{HEX}/triggers/m/paths/invoke?sig={RANDOM}",
        HEX,
    ),
    "google chat": (f"x https://chat.googleapis.com/v1/spaces/AAA/messages?key={PASSWORD}", PASSWORD),
    "mattermost webhook": (f"x https://chat.example.com/hooks/{PASSWORD}", PASSWORD),
    "token in a path": (f"x https://ci.example.com/run/{RANDOM}/start", RANDOM),
    "query": (f"x https://api.example/v1?user=ann&token={PASSWORD}&n=3", PASSWORD),
    "azure function": (f"x https://f.azurewebsites.net/api/x?code={PASSWORD}", PASSWORD),
    "azure blob": (f"x https://b.blob.core.windows.net/c?sv=2022&sig={PASSWORD}", PASSWORD),
    "azure connection string": (f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={BLOB[:60]}==", BLOB[:60]),
    "service bus": (f"Endpoint=sb://x.example/;SharedAccessSignature={PASSWORD}", PASSWORD),
    "google credentials": (["t.py", f'{{"type":"service_account","private_key_id":"{HEX}"}}'], HEX),
    "private key": (["t.py", f"-----BEGIN OPENSSH PRIVATE KEY-----\n{BLOB}"], BLOB[:20]),
    "private key on one line": (
        ["t.py", f"-----BEGIN PRIVATE KEY-----\\n{BLOB}\\n-----END PRIVATE KEY-----"],
        BLOB[:20],
    ),
    "base64": (f"train.py --config-b64 {BLOB}", BLOB[:20]),
    "docker auth": (f'{{"auths":{{"r.example":{{"auth":"{BASIC}"}}}}}}', BASIC),
    "netrc": (f"machine x login ann password {PASSWORD}".replace("password ", "password="), PASSWORD),
    "jwt": ("t.py eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "eyJzdWIi"),
    # vendors
    "aws": ("t.py AKIAIOSFODNN7EXAMPLE", "AKIAIOSF"),
    "hugging face": (f"t.py hf_{RANDOM}abcdefghij", RANDOM),
    "hugging face in a URL": (f"git clone https://ann:hf_{RANDOM}abcdefghij@huggingface.co/x", RANDOM),
    "openai": (f"t.py sk-proj-{RANDOM}", RANDOM),
    "anthropic": (f"t.py sk-ant-api03-{RANDOM}-{RANDOM}AA", RANDOM),
    "deepseek": (f"t.py sk-{HEX}", HEX),
    "github": (f"t.py ghp_{RANDOM}{RANDOM[:12]}", RANDOM),
    "github fine-grained": (f"t.py github_pat_11ABC_{RANDOM}{RANDOM}", RANDOM),
    "gitlab": (f"t.py glpat-{RANDOM[:20]}", RANDOM[:20]),
    "gitlab runner": (f"t.py glrt-{RANDOM[:20]}", RANDOM[:20]),
    "slack": ("t.py xoxb-1234567890-abcdefghij", "abcdefghij"),
    "slack app": (f"t.py xapp-1-A012345-0123456789-{HEX}", HEX),
    "linear": (f"t.py lin_api_{RANDOM}{RANDOM[:16]}", RANDOM),
    "digital ocean": (f"t.py dop_v1_{HEX}{HEX}", HEX),
    "shopify": (f"t.py shpat_{HEX}", HEX),
    "sentry": (f"t.py sntrys_{RANDOM}", RANDOM),
    "hubspot": (f"t.py pat-na1-{UUID}", UUID),
    "databricks": (f"t.py dapi{HEX}", HEX),
    "nvidia": (f"t.py nvapi-{RANDOM}{RANDOM}", RANDOM),
    "replicate": (f"t.py r8_{RANDOM}", RANDOM),
    "groq": (f"t.py gsk_{RANDOM}{RANDOM}", RANDOM),
    "npm": (f"t.py npm_{RANDOM}{RANDOM[:12]}", RANDOM),
    "pypi": (f"t.py pypi-AgEIcHlwaS5vcmc{RANDOM}{RANDOM}{RANDOM}", RANDOM),
    "stripe": (f"t.py sk_live_{RANDOM}", RANDOM),
    "google": (f"t.py AIza{RANDOM}{RANDOM[:11]}", RANDOM),
    "telegram": (f"t.py --telegram-bot 123456789:AA{RANDOM}{RANDOM[:9]}", RANDOM),
    "heroku": (["t.py", "--heroku", UUID], UUID),
    "cloudflare": (["t.py", f"CLOUDFLARE={HEX}abcde"], HEX),
    "datadog": (["t.py", "--datadog", f"{HEX}abcdef01"], HEX),
    "wandb": (f"wandb login {HEX}abcdef01", HEX),
    "wandb, new": (f"t.py wandb_v1_{RANDOM}", RANDOM),
    "age": ("t.py AGE-SECRET-KEY-1QQPQSXG5VTJVYQ5XE6GNZKRPT6CPTZLPFNY5WJMM4L7R0RU5QHESVVLGS2", "QQPQSXG5"),
    "terraform": (f"t.py {RANDOM[:14]}.atlasv1.{RANDOM}{RANDOM}{RANDOM[:15]}", RANDOM),
}
READABLE = [
    "python -u train.py --lr 1e-4 --wd=0.1 --seed 42",
    "python -u train.py -p 8080",
    "python train.py -p gpu -u",
    "srun -p gpu -u python train.py",
    "docker run -u 1000:1000 -p 127.0.0.1:8080:80 image:1.2",
    "sudo -u ann mkdir -p /data/runs",
    "ssh -p 22 ann@node1.example.com",
    "scp -P 2222 ann@node1.example.com:/data/x /data/y",
    "torchrun --nproc_per_node=8 --rdzv_endpoint localhost:29500 train.py",
    "python train.py --user localhost:8080",
    "python train.py --model meta-llama/Llama-3-8B",
    "python train.py --model mistralai/Mixtral-8x7B-Instruct-v0.1 --tokenizer-path /models/tok",
    "python train.py --run-name llama3_8b_bs128_lr3e-4_wd0.1_seed42",
    "python train.py --run-name ResNet50FineTuneImageNet1k2024v2",
    f"python train.py --run-id {UUID}",
    f"python train.py --wandb-run-id {UUID}",
    f"torchrun --rdzv-id={UUID} train.py",
    f"python train.py --commit {HEX}abcdef01",
    f"python train.py --revision={HEX}abcdef01",
    f"python train.py --git-sha {HEX}abcdef01",
    f"python train.py --checksum sha256:{HEX}{HEX}",
    "python train.py --wandb online --neptune my-project --comet=team/project",
    "python train.py --wandb-project big-experiment-with-a-long-name-2024",
    "python train.py --data /data/imagenet/train/n01440764/ILSVRC2012_val_00000293.JPEG",
    "python train.py --data s3://bucket/very/long/prefix/of/a/dataset/part-00017-of-01024.parquet",
    "python train.py --data https://huggingface.co/datasets/allenai/c4/resolve/main/en/c4-train.00000-of-01024.json.gz",
    "python train.py --data hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT/000_00000.parquet",
    "python train.py --api-url https://medium.com/@ann/how-to-train",
    "python train.py --endpoint http://node1:8080/metrics@v2",
    "python train.py --token-file /run/secrets/hub --password-file=/etc/perfwatch/password",
    "python train.py --max-tokens 4096 --tokenizer gpt2 --num_key_value_heads 8 --pad_token_id=0",
    "python train.py --basic-block bottleneck --bearer none",
    "python -m torch.distributed.run --module my_package.train",
    "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7) --multiprocessing-fork",
    "/opt/conda/envs/py311/bin/python3.11 -X faulthandler /home/ann/projects/llm-pretraining/train_fsdp.py",
    "python train.py model.layers=32 optim.name=adamw trainer.max_steps=100000",
    "python train.py --sk-learn-pipeline sk-learn-model-version-20240101",
    "python train.py --patience 3 --compass north --monkey business --author me",
    "python train.py --checkpoint step_00120000-epoch=03-val_loss=1.234.ckpt",
    "python train.py --gpus GPU-5f2b3c4d-1234-5678-9abc-def012345678",
    "python train.py --layers DistributedDataParallelWithGradientCompression",
    "python train.py --image nvcr.io/nvidia/pytorch:24.05-py3",
    "rank 1 never joined all_reduce #8998: its workers 758 and 760 have slept at train.py:9 for 412 s",
    "TypeError: forward() got an unexpected keyword argument 'attention_mask'",
]  # fmt: skip


@pytest.mark.parametrize(("form", "secret"), HIDDEN.values(), ids=HIDDEN)
def test_a_secret_on_a_command_line_is_hidden(form: str | list[str], secret: str) -> None:
    """As the words of a command line, and as one text in a log."""
    words = form.split(" ") if isinstance(form, str) else form
    shown = redact_command(words)

    assert len(shown) == len(words)
    assert secret not in " ".join(shown)
    assert REDACTED in " ".join(shown)
    assert redact_command(shown) == shown
    if isinstance(form, str):
        assert secret not in (text := redact(form))
        assert redact(text) == text


@pytest.mark.parametrize("text", READABLE)
def test_what_looks_like_a_secret_stays_readable(text: str) -> None:
    """Numbers, paths, models, commits, names of runs."""
    assert redact_command(text.split(" ")) == tuple(text.split(" "))
    assert redact(text) == text


def seconds(words: list[str]) -> float:
    """CPU time, the best of three."""
    took = []
    for _ in range(3):
        began = time.thread_time()
        redact_command(words)
        took.append(time.thread_time() - began)
    return min(took)


BEGINNINGS = [*sorted(_catalogue()[0]), *_catalogue()[1]]
HOSTILE = [
    "http://", "http://hook", "https://x/workflows/", "a://b:", "user:password@", "-----BEGIN A PRIVATE KEY-----", "Authorization: ",
    "password=", "--password ", "'", '"', "\\", "-p ", "mysql -p", "-u a:", "eyJaaaaaaaa.", "Basic ", "?key=", "xoxb-", "\v", "=", "--",
    "login=", "commit ", "pass", "_", "a-b_", "A1b", "0" * 32, " " * 40,
]  # fmt: skip


def test_a_hostile_command_line_is_redacted_within_a_second() -> None:
    """Each beginning of a pattern, over and over, to the greatest length; patterns that go back and forth would take minutes."""
    slow = {}
    for part, length in [
        *((part, LONGEST_TEXT) for part in HOSTILE),
        *((part, LONGEST_TEXT // 16) for part in BEGINNINGS),
    ]:
        text = (part * (length // len(part) + 1))[:length]
        began = time.thread_time()
        redact(text)
        slow[part] = time.thread_time() - began

    assert max(slow.values()) < 2.0, sorted(slow.items(), key=lambda one: -one[1])[:5]


def test_megabytes_of_arguments_are_redacted_in_time() -> None:
    """A word is cut at 64 KiB, and time is in proportion to the number of words."""
    assert redact_command(["x" * 2**20]) == ("x" * LONGEST_TEXT + " [cut]",)
    assert seconds(["token=abc"] * 4000) < 12 * max(seconds(["token=abc"] * 1000), 0.01)


PIECES = st.one_of(
    st.sampled_from([piece for piece in [*HOSTILE, *BEGINNINGS] if len(piece) < 40]),
    st.text(string.printable, max_size=12),
    st.text(max_size=4),
)


@settings(max_examples=100, deadline=2000)
@given(st.lists(st.lists(PIECES, max_size=6).map("".join), max_size=6))
def test_any_command_line_keeps_its_number_of_words(words: list[str]) -> None:
    """And redacting ends, whatever stands in it."""
    assert len(redact_command(words)) == len(words)


def test_a_usual_command_line_is_redacted_in_a_fraction_of_a_millisecond() -> None:
    """The time that each process of a job costs when it is found; measured 110 us, the bound allows for a loaded machine."""
    words = "python -u -m torch.distributed.run --nproc_per_node=8 train.py --model meta-llama/Llama-3-8B --lr 3e-4 --out".split()
    took = min(seconds([*words, f"/data/runs/{number}/checkpoint"]) for number in range(20))

    assert took < 1e-3
