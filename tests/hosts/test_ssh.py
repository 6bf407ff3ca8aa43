"""A Link to real OpenSSH servers: who is let in, what travels, what breaks, and that no wait is without end."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from rehearsal.boxes import Address, Request, ssh, ssh_config
from rehearsal.boxes.host import Host
from rehearsal.boxes.keys import mint
from rehearsal.boxes.ssh import KeyRefused, Link
from rehearsal.runner.errors import BoxError, LinkError
from tests.hosts.sshd import Sshd, ssh_agent

NewHost = Callable[..., Sshd]


@pytest.fixture
def link(host: Sshd) -> Iterator[Link]:
    with Link(host.address()) as link:
        yield link


def resolved(sshd: Sshd, config: str, target: str | None = None) -> Address:
    """The address that the driver `host` finds: the way through ssh_config, known_hosts and the keys."""
    return Host(config).create(Request("test", 60, False, sshd.keys, target or sshd.target))


def logins(sshd: Sshd) -> int:
    return sshd.log.count("Accepted publickey")


# The host's key


def test_the_pinned_key_is_the_hosts(host: Sshd, link: Link) -> None:
    assert link.server_key == host.host_key
    assert link.alive


def test_without_a_pinned_key_nothing_is_accepted(new_host: NewHost) -> None:
    sshd = new_host()
    with pytest.raises(LinkError, match="can't be reached"):
        Link(sshd.address(host_key=None))
    assert logins(sshd) == 0


def test_another_key_than_the_pinned_one_is_refused_before_the_login(new_host: NewHost, tmp_path: Path) -> None:
    sshd = new_host()
    mint(tmp_path / "other")
    other = (tmp_path / "other" / "host_ed25519.pub").read_text().strip()
    with pytest.raises(LinkError, match="another host key") as caught:
        Link(sshd.address(host_key=other))
    assert "known_hosts" in caught.value.hint
    assert logins(sshd) == 0


def test_another_kind_of_key_than_the_pinned_one_is_refused(new_host: NewHost, tmp_path: Path) -> None:
    sshd = new_host()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(tmp_path / "ecdsa")], check=True)
    other = " ".join((tmp_path / "ecdsa.pub").read_text().split()[:2])
    with pytest.raises(LinkError):
        Link(sshd.address(host_key=other))
    assert logins(sshd) == 0


def test_a_host_with_two_keys_is_held_against_the_pinned_one(new_host: NewHost, tmp_path: Path) -> None:
    """Whichever the server would prefer: what was pinned is what is asked for."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(tmp_path / "ecdsa")], check=True)
    sshd = new_host(options=[f"HostKey {tmp_path / 'ecdsa'}"])
    ecdsa = " ".join((tmp_path / "ecdsa.pub").read_text().split()[:2])
    for pinned in (ecdsa, sshd.host_key):
        with Link(sshd.address(host_key=pinned)) as link:
            assert link.server_key == pinned


def test_an_unknown_host_is_not_connected_to_at_all(new_host: NewHost, tmp_path: Path) -> None:
    sshd = new_host(options=["LogLevel VERBOSE"])
    before = sshd.log.count("Connection from")
    (tmp_path / "empty").touch()
    with pytest.raises(LinkError, match="not in known_hosts") as caught:
        resolved(sshd, sshd.ssh_config(known_hosts=tmp_path / "empty"))
    assert "ssh " in caught.value.hint
    assert sshd.log.count("Connection from") == before


@pytest.mark.parametrize("kind", ["hashed", "beside an authority", "revoked", "authority only"])
def test_known_hosts_lines(new_host: NewHost, tmp_path: Path, kind: str) -> None:
    sshd = new_host()
    mint(tmp_path / "authority")
    authority = f"@cert-authority * {(tmp_path / 'authority' / 'host_ed25519.pub').read_text()}"
    line = f"{sshd.name} {sshd.host_key}\n"
    known = tmp_path / "known"
    known.write_text(
        {
            "hashed": line,
            "beside an authority": authority + line,
            "revoked": f"{line}@revoked * {sshd.host_key}\n",
            "authority only": authority,
        }[kind]
    )
    if kind == "hashed":
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    config = sshd.ssh_config(known_hosts=known)
    if kind in ("hashed", "beside an authority"):
        assert resolved(sshd, config).host_key == sshd.host_key
    else:
        with pytest.raises(LinkError, match="not in known_hosts"):
            resolved(sshd, config)
        assert logins(sshd) == 0


# Logging in


def test_another_key_is_refused_with_its_name(host: Sshd, tmp_path: Path) -> None:
    mint(tmp_path / "other")
    other = str(tmp_path / "other" / "id_ed25519")
    with pytest.raises(KeyRefused) as caught:
        Link(host.address(identity=other))
    assert other in caught.value.hint


def test_only_the_one_identity_is_offered(new_host: NewHost, home: Path, tmp_path: Path) -> None:
    """Neither the agent's keys nor those in ~/.ssh: the server sees one, and it is the named one."""
    sshd = new_host(options=["LogLevel DEBUG1"])
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_ed25519").write_bytes(sshd.identity.read_bytes())
    (home / ".ssh" / "id_ed25519").chmod(0o600)
    mint(tmp_path / "other")
    with ssh_agent(tmp_path / "agent", sshd.identity) as agent:
        os.environ["SSH_AUTH_SOCK"] = agent
        with pytest.raises(KeyRefused):
            Link(sshd.address(identity=str(tmp_path / "other" / "id_ed25519")))
    assert logins(sshd) == 0


def test_a_damaged_key_file_is_named(host: Sshd, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key\n")
    with pytest.raises(LinkError, match="can't be used"):
        Link(host.address(identity=str(tmp_path / "key")))


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A key file under a passphrase, with its public half beside it; its like without one is `locked.plain`."""
    plain = tmp_path / "locked.plain"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(plain)], check=True)
    key = tmp_path / "locked"
    key.write_bytes(plain.read_bytes())
    key.chmod(0o600)
    (tmp_path / "locked.pub").write_bytes((tmp_path / "locked.plain.pub").read_bytes())
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True, capture_output=True
    )
    return key


def let_in(sshd: Sshd, public: Path) -> None:
    (sshd.keys / "authorized_keys").write_bytes(public.read_bytes())


def test_a_passphrase_key_is_used_through_the_agent(new_host: NewHost, locked: Path, tmp_path: Path) -> None:
    sshd = new_host()
    let_in(sshd, tmp_path / "locked.pub")
    assert ssh.usable(str(locked)) == "passphrase"
    with ssh_agent(tmp_path / "agent", tmp_path / "locked.plain") as agent:
        address = resolved(sshd, sshd.ssh_config(f"IdentityAgent {agent}", "IdentitiesOnly yes", identity=locked))
        assert address.identity == ssh.public_name(str(locked))
        with Link(Address.from_json(address.to_json())) as link:
            assert link.script("echo in").text == "in\n"


def test_a_passphrase_key_without_an_agent_says_what_to_do(new_host: NewHost, locked: Path, tmp_path: Path) -> None:
    sshd = new_host()
    let_in(sshd, tmp_path / "locked.pub")
    with pytest.raises(LinkError, match="no key to log in") as caught:
        resolved(sshd, sshd.ssh_config(identity=locked))
    assert "ssh-add" in caught.value.hint


def test_a_key_that_left_the_agent_says_what_to_do(host: Sshd, tmp_path: Path) -> None:
    with ssh_agent(tmp_path / "agent", host.identity) as agent:
        (name,) = ssh.agent_names(agent)
        subprocess.run(
            ["ssh-add", "-q", "-D"], env={**os.environ, "SSH_AUTH_SOCK": agent}, check=True, capture_output=True
        )
        with pytest.raises(LinkError, match="does not hold") as caught:
            Link(host.address(identity=name, agent=agent))
    assert "ssh-add" in caught.value.hint


@pytest.mark.parametrize("only", ["IdentitiesOnly yes", "IdentitiesOnly no"])
def test_eight_wrong_keys_in_the_agent_do_not_lock_the_right_file_out(
    new_host: NewHost, tmp_path: Path, only: str
) -> None:
    sshd = new_host()
    wrong = []
    for number in range(8):
        mint(tmp_path / str(number))
        wrong.append(tmp_path / str(number) / "id_ed25519")
    with ssh_agent(tmp_path / "agent", *wrong) as agent:
        address = resolved(sshd, sshd.ssh_config(f"IdentityAgent {agent}", only))
    assert address.identity == str(sshd.identity)


def test_a_key_that_only_the_agent_holds_is_found_among_wrong_ones(new_host: NewHost, tmp_path: Path) -> None:
    sshd = new_host()
    keys = []
    for number in range(3):
        mint(tmp_path / str(number))
        keys.append(tmp_path / str(number) / "id_ed25519")
    with ssh_agent(tmp_path / "agent", *keys, sshd.identity) as agent:
        config = sshd.ssh_config(f"IdentityAgent {agent}", identity=tmp_path / "none")
        with Link(resolved(sshd, config)) as link:
            assert link.script("echo in").text == "in\n"


def test_eight_wrong_keys_and_no_right_one_end_in_one_sentence(new_host: NewHost, tmp_path: Path) -> None:
    sshd = new_host()
    wrong = []
    for number in range(8):
        mint(tmp_path / str(number))
        wrong.append(tmp_path / str(number) / "id_ed25519")
    with ssh_agent(tmp_path / "agent", *wrong) as agent, pytest.raises(KeyRefused, match="refuses the key"):
        resolved(sshd, sshd.ssh_config(f"IdentityAgent {agent}", identity=tmp_path / "none"))


def test_forward_agent_in_the_users_configuration_exposes_nothing(
    new_host: NewHost, home: Path, tmp_path: Path
) -> None:
    sshd = new_host(options=["AllowAgentForwarding yes"])
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").write_text("Host *\n  ForwardAgent yes\n")
    with ssh_agent(tmp_path / "agent", sshd.identity) as agent:
        os.environ["SSH_AUTH_SOCK"] = agent
        config = sshd.ssh_config("ForwardAgent yes", "SendEnv *", f"IdentityAgent {agent}")
        for address in (resolved(sshd, config), sshd.address(identity=ssh.agent_names(agent)[0])):
            with Link(address) as link:
                assert link.script('echo "${SSH_AUTH_SOCK-none}"').text == "none\n"


# Commands


def test_arguments_arrive_as_they_are(link: Link) -> None:
    odd = ["", "a b", "'", '"', "$HOME", "`id`", "a\nb", "\\n", "*", "-n", "ä€😀", "!!", "~", "#"]
    assert link.script('printf "%s|" "$@"', *odd).text == "|".join(odd) + "|"


def test_scripts_and_arguments_are_in_no_process_list(link: Link) -> None:
    seen = link.script("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; : in-the-script", "in-an-argument").text
    assert "sshd" in seen
    assert "in-the-script" not in seen
    assert "in-an-argument" not in seen


def test_standard_input_is_neither_inherited_nor_drained(link: Link) -> None:
    """What comes after a command that reads its input still runs: the script itself is that input."""
    assert link.script("cat; cat >/dev/null; echo end").text == "end\n"


def test_the_laptops_standard_input_is_left_alone(host: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    there, ours = os.pipe()
    os.write(ours, b"typed ahead\n")
    os.close(ours)
    kept = os.dup(0)
    os.dup2(there, 0)
    try:
        with Link(host.address()) as link:
            assert link.script("cat; echo end").text == "end\n"
        assert os.read(0, 100) == b"typed ahead\n"
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(there)


def test_bytes_that_are_no_utf8_come_back_unchanged_and_print_as_escapes(link: Link) -> None:
    answer = link.script("printf '\\377\\000\\303'; printf '\\351' >&2")
    assert answer.output == b"\xff\x00\xc3"
    assert answer.text == "\\xff\x00\\xc3"
    assert answer.errors == "\\xe9"


def test_a_failure_carries_the_exit_code_and_the_end_of_its_errors(link: Link) -> None:
    with pytest.raises(BoxError, match="ended with 3") as caught:
        link.script("head -c 5000 /dev/zero | tr '\\0' x >&2; echo 'and this went wrong' >&2; exit 3")
    assert caught.value.message.endswith("and this went wrong")
    assert len(caught.value.message) < 600


def test_a_failure_without_a_word_says_so(link: Link) -> None:
    with pytest.raises(BoxError, match="ended with 1: no output"):
        link.script("false")


def test_a_failure_can_be_asked_for(link: Link) -> None:
    answer = link.script("echo out; echo err >&2; exit 7", check=False)
    assert (answer.output, answer.errors, answer.code) == (b"out\n", "err\n", 7)


def test_a_command_that_is_killed_is_no_success(link: Link) -> None:
    with pytest.raises(BoxError):
        link.script("kill -9 $$")


def test_many_errors_do_not_stop_the_output(link: Link) -> None:
    """Both streams share the window of one channel: whoever reads only one of them waits for ever."""
    answer = link.script("head -c 6000000 /dev/zero >&2; head -c 6000000 /dev/zero", timeout=20)
    assert (len(answer.errors), len(answer.output)) == (6_000_000, 6_000_000)


def test_a_background_process_does_not_hold_the_answer_up(link: Link) -> None:
    answer = link.script("sleep 300 </dev/null >/dev/null 2>&1 & echo $!", timeout=10)
    link.script('kill "$1"', answer.text.strip())


def test_a_hundred_commands_on_one_connection(link: Link) -> None:
    assert [link.script('echo "$1"', str(i)).text for i in range(100)] == [f"{i}\n" for i in range(100)]


def test_commands_from_many_threads(host: Sshd, link: Link) -> None:
    said: list[str] = []
    threads = [
        threading.Thread(target=lambda i=i: said.append(link.script('sleep 0.1; echo "$1"', str(i)).text))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == [f"{i}\n" for i in range(8)]


# Files


def test_twenty_megabytes_go_up_and_come_back(host: Sshd, link: Link) -> None:
    data = os.urandom(20_000_000)
    path = f"{host.home}/a file with 'quotes'"
    link.send('cat > "$1"', path, (data[i : i + 65536] for i in range(0, len(data), 65536)), timeout=60)
    back = io.BytesIO()
    link.fetch(path, back, limit=30_000_000, timeout=60)
    Path(path).unlink()
    assert hashlib.sha256(back.getvalue()).digest() == hashlib.sha256(data).digest()


def test_an_upload_that_fails_says_why_at_once(host: Sshd, link: Link) -> None:
    with pytest.raises(BoxError, match=r"ended with [12].*(No such file|nonexistent|Directory)"):
        link.send('cat > "$1"', f"{host.home}/no/such/folder", [bytes(65536)] * 200, timeout=30)


def test_a_file_that_is_not_there_is_a_box_error(host: Sshd, link: Link) -> None:
    with pytest.raises(BoxError, match="No such file"):
        link.fetch(f"{host.home}/none", io.BytesIO(), limit=30_000_000, timeout=10)


def test_what_is_no_regular_file_is_not_read(host: Sshd, link: Link, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "link", tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(BoxError, match="not a regular file"):
            link.fetch(str(path), io.BytesIO(), limit=1000, timeout=10)
    assert link.alive


def test_a_file_comes_up_to_its_limit_and_not_a_byte_beyond(host: Sshd, link: Link, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(5_000_000))
    back = io.BytesIO()
    link.fetch(str(file), back, limit=5_000_000, timeout=30)
    assert len(back.getvalue()) == 5_000_000
    back = io.BytesIO()
    with pytest.raises(BoxError, match="more than the 4999999 bytes"):
        link.fetch(str(file), back, limit=4_999_999, timeout=30)
    assert len(back.getvalue()) <= 4_999_999
    assert link.script("echo in").text == "in\n"


def test_a_target_that_is_full_is_not_taken_for_a_lost_connection(host: Sshd, link: Link, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(BoxError, match="can't be kept on this machine"):
        link.fetch(str(tmp_path / "file"), full, limit=100_000, timeout=30)
    assert link.alive


@pytest.mark.parametrize("stream", ["&1", "&2"])
def test_an_answer_without_end_is_cut_at_its_limit(
    host: Sshd, link: Link, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    monkeypatch.setattr(ssh, "ANSWER", 3_000_000)
    with pytest.raises(BoxError, match="more than the 3000000 bytes"):
        link.script(f"cat /dev/zero >{stream}", timeout=60, limit=3_000_000)
    assert link.script("echo in").text == "in\n"


def test_a_login_that_never_stops_talking_is_cut(new_host: NewHost) -> None:
    sshd = new_host(options=["ForceCommand cat /dev/zero"])
    with Link(sshd.address()) as link, pytest.raises(BoxError, match="no POSIX shell answered"):
        link.script("echo in", timeout=60)


def test_an_upload_that_is_answered_without_end_is_cut(host: Sshd, link: Link) -> None:
    with pytest.raises(BoxError, match="answered an upload with more"):
        link.send("cat /dev/zero", "", [b"x"], timeout=60)


def test_a_host_without_sftp_is_as_good_as_any(host: Sshd, link: Link) -> None:
    """None of the servers here has the subsystem: see sshd_config."""
    client = paramiko.SSHClient()
    client.get_host_keys().add(
        host.name, "ssh-ed25519", paramiko.hostkeys.HostKeyEntry.from_line(f"x {host.host_key}").key
    )
    client.connect(
        host.host, host.port, host.user, key_filename=str(host.identity), allow_agent=False, look_for_keys=False
    )
    with client, pytest.raises(paramiko.SSHException):
        client.open_sftp()
    link.send('cat > "$1"', f"{host.home}/file", [b"here"], timeout=10)
    back = io.BytesIO()
    link.fetch(f"{host.home}/file", back, limit=30_000_000, timeout=10)
    assert back.getvalue() == b"here"


# Odd hosts


NOISE = "echo 'Welcome!'; printf 'no newline'; echo error >&2; stty erase x 2>&1\n"


def test_a_chatty_login_file_does_no_harm(new_host: NewHost) -> None:
    sshd = new_host()
    for name in (".bashrc", ".profile", ".bash_profile", ".zshenv", ".cshrc"):
        (sshd.home / name).write_text(NOISE)
    with Link(sshd.address()) as link:
        assert link.script("printf here").output == b"here"
        data = os.urandom(300_000)
        link.send('cat > "$1"', f"{sshd.home}/file", [data], timeout=10)
        back = io.BytesIO()
        link.fetch(f"{sshd.home}/file", back, limit=30_000_000, timeout=10)
        assert back.getvalue() == data


def shell(name: str, body: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        path = folder / name
        path.write_text(body)
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize(
    ("body", "works"),
    [
        ('#!/bin/sh\necho Welcome\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n', True),
        ("#!/bin/sh\necho This account is currently not available.\nexit 1\n", False),
        ("#!/bin/sh\nexit 0\n", False),
        ('#!/bin/sh\nexec python3 -c "print(1)"\n', False),
        ("#!/bin/sh\ncat\n", False),
    ],
    ids=["noisy", "nologin", "silent", "another program", "an echo"],
)
def test_what_stands_in_for_a_shell(new_host: NewHost, tmp_path: Path, body: str, works: bool) -> None:
    """A forced command is what a strange log-in shell amounts to; only a POSIX shell gives the right answer."""
    sshd = new_host(options=[f"ForceCommand {shell('shell', body)(tmp_path)}"])
    with Link(sshd.address()) as link:
        if works:
            assert link.script("echo in").text == "in\n"
        else:
            with pytest.raises(BoxError, match="no POSIX shell answered"):
                link.script("echo in", timeout=10)


def test_max_sessions_two_is_enough_for_one_command_after_the_other(new_host: NewHost) -> None:
    sshd = new_host(options=["MaxSessions 2"])
    with Link(sshd.address()) as link:
        for number in range(20):
            assert link.script('echo "$1"', str(number)).text == f"{number}\n"


def test_no_session_at_all_is_a_link_error(new_host: NewHost) -> None:
    sshd = new_host(options=["MaxSessions 0"])
    with Link(sshd.address()) as link, pytest.raises(LinkError):
        link.script("echo in")


def test_a_host_that_forwards_nothing_says_which_setting(new_host: NewHost) -> None:
    sshd = new_host(options=["AllowTcpForwarding no"])
    with Link(sshd.address()) as link:
        with pytest.raises(LinkError, match="refuses to forward") as caught:
            link.forward(0, lambda channel: channel.close())
        assert "AllowTcpForwarding" in caught.value.hint
        assert link.script("echo still here").text == "still here\n"


def test_a_port_that_is_taken_is_a_link_error(host: Sshd, link: Link) -> None:
    with pytest.raises(LinkError, match="refuses to forward"):
        link.forward(host.port, lambda channel: channel.close())


# Ends


def test_nobody_listens(host: Sshd) -> None:
    with pytest.raises(LinkError, match="can't be reached"):
        Link(host.address(port=1))


def test_a_name_that_does_not_exist(host: Sshd) -> None:
    with pytest.raises(LinkError, match="can't be reached"):
        Link(host.address(host="no-such-host.invalid"))


def test_a_peer_that_says_nothing_is_given_up_in_one_sentence(host: Sshd) -> None:
    """In a process of its own, for pytest gives every logger a handler: without one, tracebacks went to the screen."""
    program = (
        "import json, sys\n"
        "from rehearsal.boxes import Address, ssh\n"
        "from rehearsal.runner.errors import LinkError\n"
        "ssh.CONNECT_S = 0.5\n"
        "try:\n"
        "    ssh.Link(Address.from_json(json.load(sys.stdin)))\n"
        "except LinkError as error:\n"
        "    print(error.message, error.hint, sep='\\n')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = host.address(port=mute.getsockname()[1]).to_json()
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(address),
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
    message, hint = done.stdout.splitlines()
    assert message.endswith("no SSH banner came within 0.5 s")
    assert "SSH server" in hint
    assert done.stderr == ""


@pytest.mark.parametrize(
    "greeting",
    [
        b"220 mail.example ESMTP\r\n" * 200,
        b"SSH-2.0-x\r\n\xff\xff\xff\xff" + bytes(100),
        b"SSH-1.0-x\r\n",
        b"SSH-2.0-x\r\n\0\0\0\x0c\x0a\x14" + bytes(10),
        b"\xff\xfe\r\n",
    ],
    ids=["mail", "huge packet", "version 1", "short offer", "bytes"],
)
def test_a_peer_that_talks_nonsense_is_a_link_error(
    host: Sshd, monkeypatch: pytest.MonkeyPatch, greeting: bytes
) -> None:
    monkeypatch.setattr(ssh, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            stream, _ = listener.accept()
            with stream, contextlib.suppress(OSError):
                stream.sendall(greeting)
                while stream.recv(65536):
                    pass

        peer = threading.Thread(target=talk)
        peer.start()
        with pytest.raises(LinkError, match="can't be reached"):
            Link(host.address(port=listener.getsockname()[1]))
        peer.join()


def test_a_command_that_hangs_is_given_up(host: Sshd) -> None:
    with Link(host.address()) as link:
        with pytest.raises(LinkError, match=r"within 0\.5 s"):
            link.script("echo $$; exec sleep 2", timeout=0.5)
        assert not link.alive


def test_a_command_that_never_stops_talking_is_given_up(host: Sshd) -> None:
    with Link(host.address()) as link, pytest.raises(LinkError, match=r"within 0\.5 s"):
        link.script("while :; do echo more; sleep 0.05; done", timeout=0.5)


def test_a_command_that_does_not_read_is_given_up(host: Sshd) -> None:
    with Link(host.address()) as link, pytest.raises(LinkError):
        link.send("exec sleep 2", "", [bytes(65536)] * 200, timeout=0.5)


def test_a_server_that_is_killed_in_mid_command_is_a_link_error(new_host: NewHost) -> None:
    sshd = new_host()
    with Link(sshd.address()) as link:
        killer = threading.Timer(0.3, sshd.signal_connections, [signal.SIGKILL])
        killer.start()
        with pytest.raises(LinkError, match="lost"):
            link.script("exec sleep 2")
        killer.join()
        assert not link.alive
        with pytest.raises(LinkError):
            link.script("echo again")


def test_a_server_that_is_killed_in_mid_upload_is_a_link_error(new_host: NewHost) -> None:
    sshd = new_host()

    def blocks() -> Iterator[bytes]:
        yield bytes(65536)
        assert sshd.signal_connections(signal.SIGKILL)
        while True:
            yield bytes(65536)

    with Link(sshd.address()) as link, pytest.raises(LinkError):
        link.send('cat > "$1"', f"{sshd.home}/file", blocks(), timeout=30)


def test_a_peer_that_stops_answering_is_given_up(new_host: NewHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "CONNECT_S", 1)
    sshd = new_host()
    with Link(sshd.address()) as link:
        link.script("true")  # by now the process that serves this log-in is there
        assert sshd.signal_connections(signal.SIGSTOP)
        with pytest.raises(LinkError):
            link.script("echo in", timeout=1)


def test_a_host_that_refuses_connections_for_a_while(new_host: NewHost) -> None:
    sshd = new_host()
    sshd.stop()
    with pytest.raises(LinkError, match="can't be reached"):
        Link(sshd.address())
    sshd.start()
    with Link(sshd.address()) as link:
        assert link.script("echo back").text == "back\n"


def test_closing_twice_and_leaving_no_thread(host: Sshd) -> None:
    before = threading.active_count()
    link = Link(host.address())
    link.close()
    link.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


# Ways to the host


def test_an_alias(host: Sshd) -> None:
    config = host.ssh_config("Host eval-box", f"  HostName {host.host}", f"  Port {host.port}", f"  User {host.user}")
    address = resolved(host, config, "eval-box")
    assert (address.host, address.port, address.user) == (host.host, host.port, host.user)


def test_ipv6(new_host: NewHost) -> None:
    try:
        sshd = new_host(listen="::1")
    except OSError as error:
        pytest.skip(f"there is no IPv6 loopback here: {error}")
    with Link(resolved(sshd, sshd.ssh_config())) as link:
        assert link.script("echo in").text == "in\n"


def test_a_jump_host(new_host: NewHost) -> None:
    jump, inner = new_host(), new_host()
    known = inner.folder / "both"
    known.write_text(f"{jump.name} {jump.host_key}\n{inner.name} {inner.host_key}\n")
    config = inner.ssh_config(
        "Host jump",
        f"  HostName {jump.host}",
        f"  Port {jump.port}",
        f"  User {jump.user}",
        f"  IdentityFile {jump.identity}",
        "Host inner",
        f"  HostName {inner.host}",
        f"  Port {inner.port}",
        f"  User {inner.user}",
        "  ProxyJump jump",
        known_hosts=known,
    )
    address = resolved(inner, config, "inner")
    with Link(Address.from_json(address.to_json())) as link:
        assert link.server_key == inner.host_key
        # The far host sees a client on the jump host, not this process.
        assert link.script('echo "${SSH_CONNECTION%% *}"').text == f"{inner.host}\n"
        assert logins(jump) >= 1
        assert link.forward(0, lambda channel: channel.close()) > 0
    jump.stop()
    with pytest.raises(LinkError):
        Link(address)


def test_a_jump_host_with_an_unknown_key_is_not_passed(new_host: NewHost) -> None:
    jump, inner = new_host(), new_host()
    config = inner.ssh_config(f"Host {inner.host}", f"  ProxyJump {jump.user}@{jump.host}:{jump.port}")
    with pytest.raises(LinkError):
        resolved(inner, config)
    assert logins(jump) == logins(inner) == 0


def test_a_proxy_command(new_host: NewHost) -> None:
    sshd = new_host()
    pipe = sshd.folder / "pipe.py"
    pipe.write_text(
        "import socket, sys, threading, os\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    address = resolved(sshd, sshd.ssh_config(f"ProxyCommand python3 {pipe} %h %p"))
    assert address.proxy is not None
    with Link(address) as link:
        assert link.script("echo in").text == "in\n"


def test_a_proxy_command_that_fails_is_a_link_error(host: Sshd) -> None:
    with pytest.raises(LinkError):
        Link(host.address(proxy=("sh", "-c", "exit 1")))
    with pytest.raises(LinkError):
        Link(host.address(proxy=("no-such-program",)))


def test_a_link_ends_its_proxy(host: Sshd) -> None:
    config = host.ssh_config(
        f"Host {host.host}", f"  ProxyCommand ssh -F {host.ssh_config()} -p %p -W %h:%p {host.host}"
    )
    with Link(resolved(host, config)) as link:
        proxy = link._proxy
        assert proxy is not None
        assert proxy.poll() is None
    assert proxy.poll() is not None


def test_the_configuration_may_be_gone_when_the_box_is_torn_down(new_host: NewHost) -> None:
    sshd = new_host()
    config = sshd.ssh_config()
    address = resolved(sshd, config)
    Path(config).unlink()
    (sshd.folder / "known_hosts").unlink()
    with Link(Address.from_json(address.to_json())) as link:
        assert link.script("echo in").text == "in\n"


def test_resolving_needs_no_server(host: Sshd) -> None:
    assert ssh_config.resolve(host.target, host.ssh_config()).host_keys == (host.host_key,)
