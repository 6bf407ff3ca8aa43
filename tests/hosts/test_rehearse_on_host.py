"""`invoke rehearse --box host`, from a person's shell to a real OpenSSH server and back, on good days and bad ones."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.project import TICKETS, Done, Project, eventually, finish, plain, reply, slow
from tests.contract.misbehaving import DRAFT, answer
from tests.hosts.sshd import IS_ROOT, Sshd

NewHost = Callable[..., Sshd]


def on(sshd: Sshd, project: Project, *more: str, config: str | None = None) -> list[str]:
    """The arguments of a rehearsal on this host."""
    project.configure(ssh_config=config or sshd.ssh_config())
    return ["rehearse", "--box", "host", "--host", sshd.target, "--json", *more]


def boxes_on(sshd: Sshd) -> list[Path]:
    return sorted(sshd.home.glob(".rehearsal-*"))


def processes_of(name: str) -> list[psutil.Process]:
    """Processes whose arguments name the box."""
    everything = psutil.process_iter(["cmdline"])
    return [process for process in everything if any(name in word for word in process.info["cmdline"] or [])]


def assert_nothing_is_left(sshd: Sshd, box_id: str) -> None:
    assert boxes_on(sshd) == []
    assert eventually(lambda: not processes_of(box_id), 10), processes_of(box_id)


def rows(done: Done) -> list[tuple[Any, ...]]:
    with sqlite3.connect(done.evidence / "eval_runs.db") as database:
        found = database.execute("SELECT fixture_id, passed FROM eval_runs ORDER BY id").fetchall()
    database.close()
    return found


# Good days


def test_green(host: Sshd, project: Project) -> None:
    with project.model(answer(200, DRAFT)) as model:
        done = project.invoke(*on(host, project))
    assert (done.code, done.json["verdict"]) == (0, "green"), done.errors
    assert done.json["counts"] == {"expected": 3, "passed": 3, "failed": 0, "errors": 0}
    assert done.json["box"] == {**done.json["box"], "driver": "host", "isolation": "not sealed", "state": "gone"}
    assert len(model.asked) == 3
    assert [row[1] for row in rows(done)] == [1, 1, 1, 1]
    assert rows(done)[-1][0] == "corpus"
    assert_nothing_is_left(host, done.json["box"]["id"])
    assert project.boxes() == []
    assert done.receipt["state"] == "gone"
    assert done.receipt["left"] == []


def test_red(host: Sshd, project: Project) -> None:
    with project.model(answer(200, reply(suggested_reply="Your refund has been issued."))):
        done = project.invoke(*on(host, project))
    assert (done.code, done.json["verdict"]) == (1, "red"), done.errors
    assert done.json["counts"]["failed"] == 3
    assert_nothing_is_left(host, done.json["box"]["id"])


def test_the_model_is_reached_through_the_tunnel_and_the_key_stays_on_the_laptop(host: Sshd, project: Project) -> None:
    """The box sees neither the key nor the port on which this machine's model listens."""
    with project.model(answer(200, DRAFT)) as model:
        done = project.invoke(*on(host, project), env={"MODEL_KEY": "sk-made-up-for-this-test-0123456789"})
    assert done.code == 0, done.errors
    for asked in model.asked:
        assert asked.headers["authorization"] == "Bearer sk-made-up-for-this-test-0123456789"
    exposure = done.receipt["exposure"]
    assert exposure["environment"] == ["HOME", "LANG", "MODEL_URL", "PATH"]
    assert exposure["canary"] == "not found"
    assert exposure["beyond_the_allow_list"] == []
    assert exposure["processes"] >= 1
    for path in done.evidence.iterdir():
        assert b"sk-made-up" not in path.read_bytes(), path
    assert "sk-made-up" not in done.output + done.errors


def test_credentials_in_the_url_stay_on_the_laptop(host: Sshd, project: Project) -> None:
    with project.model(answer(200, DRAFT)) as model:
        secret = model.url.replace("://", "://user:pass-word-of-mine@") + "?token=tok-of-mine"
        done = project.invoke(*on(host, project), env={"MODEL_URL": secret})
    assert done.code == 0, done.errors
    assert {asked.target for asked in model.asked} == {"/v1/reply?token=tok-of-mine"}
    assert all(asked.headers["authorization"].startswith("Basic ") for asked in model.asked)
    for text in (done.output, done.errors, *(path.read_bytes().decode("latin-1") for path in done.evidence.iterdir())):
        assert "of-mine" not in text


def test_each_attempt_is_asked_for_once(host: Sshd, project: Project) -> None:
    with project.model(answer(200, DRAFT)) as model:
        done = project.invoke(*on(host, project, "--repeat", "10", "--concurrency", "16"))
    assert done.code == 0, done.errors
    assert done.json["counts"]["passed"] == len(model.asked) == 10 * len(TICKETS)


def test_a_kept_box_stays_for_a_prompt_fight_and_goes_when_told(host: Sshd, project: Project) -> None:
    with project.model(answer(200, DRAFT)):
        done = project.invoke(*on(host, project, "--keep"))
        assert done.code == 0, done.errors
        (box,) = project.boxes()
        assert len(boxes_on(host)) == 1
        (project.folder / "prompts" / "reply-v3.txt").write_text("Shorter.\n\n{{ticket_body}}\n")
        for verb in ("sync", "run", "pull"):
            again = project.invoke(verb, "--json")
            assert again.code == 0, again.errors
        assert again.json["run_id"] != done.json["run_id"]
    gone = project.invoke("teardown", "--json")
    assert gone.code == 0, gone.errors
    assert_nothing_is_left(host, box["box_id"])


# Somebody stops it


@pytest.fixture
def running(host: Sshd, project: Project) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a rehearsal whose model takes its time, and come back when the box is in the middle of the run."""
    with project.model(slow(0.3)) as model:

        def start(*more: str, sshd: Sshd = host) -> subprocess.Popen[str]:
            process = project.start(*on(sshd, project, "--repeat", "10", "--concurrency", "2", *more))
            assert model.arrived.wait(30), finish(process, 1).errors
            return process

        yield start


def test_ctrl_c_tears_down_and_ends_with_130(
    host: Sshd, project: Project, running: Callable[..., subprocess.Popen[str]]
) -> None:
    process = running()
    (box,) = boxes_on(host)
    os.killpg(process.pid, signal.SIGINT)
    done = finish(process)
    assert done.code == 130, done.errors
    assert done.json["box"]["state"] == "gone"
    assert_nothing_is_left(host, box.name)
    assert project.boxes() == []


def test_kill_9_and_then_cleanup(host: Sshd, project: Project, running: Callable[..., subprocess.Popen[str]]) -> None:
    process = running()
    process.kill()
    finish(process)
    (box,) = boxes_on(host)
    assert [row["state"] for row in project.boxes()] == ["running"]
    assert processes_of(box.name)
    done = project.invoke("cleanup", "--json")
    assert done.code == 0, done.errors
    assert_nothing_is_left(host, box.name)
    assert project.boxes() == []


def test_kill_9_and_nobody_comes_back(host: Sshd, running: Callable[..., subprocess.Popen[str]]) -> None:
    """The box's own timer ends it: directory, run and timer."""
    process = running("--ttl", "10")  # enough for a busy machine to get this far
    process.kill()
    finish(process)
    (box,) = boxes_on(host)
    assert eventually(lambda: not boxes_on(host), 20)
    assert_nothing_is_left(host, box.name)


def test_a_host_that_is_off_is_named_and_cleanup_comes_back(
    new_host: NewHost, project: Project, running: Callable[..., subprocess.Popen[str]]
) -> None:
    sshd = new_host()
    process = running(sshd=sshd)
    process.kill()
    finish(process)
    sshd.stop()
    done = project.invoke("cleanup", "--json")
    assert done.code == 4, done.errors
    (row,) = project.boxes()
    assert row["state"] == "lost"
    assert row["box_id"] in plain(done.errors)
    sshd.start()
    again = project.invoke("cleanup", "--json")
    assert again.code == 0, again.errors
    assert_nothing_is_left(sshd, row["box_id"])


def test_a_restarted_sshd_costs_nothing_but_the_wait(
    new_host: NewHost, project: Project, running: Callable[..., subprocess.Popen[str]]
) -> None:
    sshd = new_host()
    process = running(sshd=sshd)
    sshd.stop()
    sshd.start()
    done = finish(process)
    assert (done.code, done.json["verdict"]) == (0, "green"), done.errors
    assert done.json["counts"]["passed"] == 30
    assert_nothing_is_left(sshd, done.json["box"]["id"])


# Hosts that can't


def test_an_unknown_host_is_not_touched(new_host: NewHost, project: Project, tmp_path: Path) -> None:
    sshd = new_host()
    (tmp_path / "empty").touch()
    with project.model(answer(200, DRAFT)):
        done = project.invoke(*on(sshd, project, config=sshd.ssh_config(known_hosts=tmp_path / "empty")))
    assert done.code == 3
    assert "not in known_hosts" in plain(done.errors)
    assert "Accepted" not in sshd.log
    assert project.boxes() == []


def test_an_option_is_no_host(project: Project, tmp_path: Path) -> None:
    done = project.invoke("rehearse", "--box", "host", f"--host=-oProxyCommand=touch {tmp_path}/pwned", "--json")
    assert done.code == 2
    assert not (tmp_path / "pwned").exists()


def test_no_python_is_one_sentence_and_nothing_left(new_host: NewHost, project: Project, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in (
        "sh",
        "bash",
        "cat",
        "mkdir",
        "rm",
        "df",
        "awk",
        "sleep",
        "date",
        "setsid",
        "grep",
        "tr",
        "chmod",
        "ps",
        "env",
        "wc",
    ):
        for folder in ("/bin", "/usr/bin"):
            if Path(folder, name).exists():
                (tools / name).symlink_to(Path(folder, name))
                break
    sshd = new_host(environment={"PATH": str(tools)})
    with project.model(answer(200, DRAFT)) as model:
        done = project.invoke(*on(sshd, project))
    assert done.code == 3, done.errors
    assert "no Python 3.10" in plain(done.errors)
    assert done.json["verdict"] == "none"
    assert model.asked == []
    assert_nothing_is_left(sshd, done.json["box"]["id"])


def inside(mounts: str) -> list[str]:
    """A mount namespace in which `mounts` (shell) was done; a skip where that is not allowed."""
    if not IS_ROOT:
        pytest.skip("only root can mount a file system")
    wrap = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
    tried = subprocess.run([*wrap, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"root can't mount here: {tried.stderr.strip()}")
    return wrap


def test_a_full_disk_is_called_a_full_disk(new_host: NewHost, project: Project, tmp_path: Path) -> None:
    home = tmp_path / "host-0" / "home"
    home.mkdir(parents=True)
    sshd = new_host(wrap=inside(f"mount -t tmpfs -o size=1m tmpfs '{home}'"))
    with project.model(answer(200, DRAFT)):
        done = project.invoke(*on(sshd, project))
    assert done.code == 3, done.errors
    assert "KiB free in" in plain(done.errors)
    assert "reached" not in plain(done.errors)
    assert done.json["box"]["state"] == "gone"


def test_a_disk_that_fills_up_on_the_way_says_so(new_host: NewHost, project: Project, tmp_path: Path) -> None:
    """Room enough when the box is armed, and then somebody else's file takes it."""
    home = tmp_path / "host-0" / "home"
    home.mkdir(parents=True)
    shell = tmp_path / "shell"
    shell.write_text(
        "exec 3>&2 2>/dev/null\n"
        "if ls -d $HOME/.rehearsal-* && ! ls $HOME/filler; then head -c 100000000 /dev/zero > $HOME/filler; fi >&2\n"
        "exec 2>&3 3>&-\n"
        'exec sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    mount = inside(f"mount -t tmpfs -o size=24m tmpfs '{home}'")
    sshd = new_host(wrap=mount, options=[f"ForceCommand sh {shell}"])
    with project.model(answer(200, DRAFT)):
        done = project.invoke(*on(sshd, project))
    assert done.code == 3, done.errors
    assert "No space left" in plain(done.errors)
    assert done.json["box"]["state"] == "gone"


def test_a_home_that_is_read_only_is_passed_over(new_host: NewHost, project: Project, tmp_path: Path) -> None:
    home, other = tmp_path / "host-0" / "home", tmp_path / "var-tmp"
    home.mkdir(parents=True)
    other.mkdir()
    if IS_ROOT:
        sshd = new_host(wrap=inside(f"mount -t tmpfs -o ro tmpfs '{home}' && mount --bind '{other}' /var/tmp"))
    else:
        home.chmod(0o500)
        sshd = new_host()
    with project.model(answer(200, DRAFT)):
        done = project.invoke(*on(sshd, project))
    home.chmod(0o700)
    assert (done.code, done.json["verdict"]) == (0, "green"), done.errors
    (row,) = project.boxes("--all")
    assert row["address"]["directory"].startswith("/var/tmp/")
    assert not Path(row["address"]["directory"]).exists()
    assert list(other.iterdir()) == []
