"""What `ssh -G` and known_hosts say, read with the real OpenSSH; no server is needed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rehearsal.boxes import ssh_config
from rehearsal.boxes.keys import mint
from rehearsal.boxes.ssh_config import Resolved, resolve
from rehearsal.runner.errors import LinkError, UsageError

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH's ssh is not installed (openssh-client)")


@pytest.fixture
def key(tmp_path: Path) -> str:
    """A public key, as known_hosts holds one."""
    mint(tmp_path / "keys")
    return (tmp_path / "keys" / "host_ed25519.pub").read_text().strip()


def asked(tmp_path: Path, config: str, target: str, known_hosts: str = "") -> Resolved:
    """Resolve `target` under `config`, with a known_hosts of these lines and no other."""
    (tmp_path / "known_hosts").write_text(known_hosts)
    (tmp_path / "config").write_text(
        f"{config}\nHost *\n  UserKnownHostsFile {tmp_path / 'known_hosts'}\n  GlobalKnownHostsFile none\n"
    )
    return resolve(target, str(tmp_path / "config"))


# The target


@pytest.mark.parametrize(
    "target",
    [
        "-oProxyCommand=touch pwned",
        "-oProxyCommand=id",
        "me@-oProxyCommand=id",
        "-lroot",
        "me@-G",
        "",
        "me@",
        "@host",
        "host:",
        "host:x",
        "host:123456",
        "a b",
        "me@host name",
        "me@host\nProxyCommand id",
        "[::1",
        "[host]",
        "me@a@b",
        "a:22:22",
    ],
)
def test_what_is_no_target_is_refused_before_ssh_sees_it(tmp_path: Path, target: str) -> None:
    with pytest.raises(UsageError):
        asked(tmp_path, f"Match exec \"touch '{tmp_path}/seen'\"\n", target)
    assert not (tmp_path / "seen").exists()


@pytest.mark.parametrize("target", ["-oUser=root@x", "-x@host"])
def test_an_option_in_the_users_place_is_no_option(tmp_path: Path, target: str) -> None:
    with pytest.raises(UsageError):
        asked(tmp_path, "", target)


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_port_that_cannot_be_is_a_usage_error(tmp_path: Path, port: str) -> None:
    with pytest.raises(UsageError):
        asked(tmp_path, "", f"host.example:{port}")


@pytest.mark.parametrize(
    ("target", "host", "port"),
    [
        ("me@host.example", "host.example", 22),
        ("me@host.example:2222", "host.example", 2222),
        ("me@127.0.0.1:2222", "127.0.0.1", 2222),
        ("me@[::1]:2222", "::1", 2222),
        ("me@[::1]", "::1", 22),
    ],
)
def test_user_host_and_port(tmp_path: Path, target: str, host: str, port: int) -> None:
    found = asked(tmp_path, "", target)
    assert (found.user, found.host, found.port) == ("me", host, port)


# What the configuration says


def test_an_alias_gives_host_port_user_and_key(tmp_path: Path, key: str) -> None:
    identity = tmp_path / "keys" / "id_ed25519"
    config = (
        f"Host eval\n  HostName 10.1.2.3\n  Port 2022\n  User lab\n  IdentityFile {identity}\n  IdentitiesOnly yes\n"
    )
    found = asked(tmp_path, config, "eval", f"[10.1.2.3]:2022 {key}\n")
    assert (found.host, found.port, found.user) == ("10.1.2.3", 2022, "lab")
    assert found.identities == (str(identity),)
    assert found.only_files
    assert found.host_keys == (key,)
    assert found.proxy is None


def test_what_the_target_says_wins_over_the_alias(tmp_path: Path) -> None:
    found = asked(tmp_path, "Host eval\n  HostName 10.1.2.3\n  Port 2022\n  User lab\n", "me@eval:22")
    assert (found.host, found.port, found.user) == ("10.1.2.3", 22, "me")


def test_include_and_match_are_read_as_openssh_reads_them(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Match originalhost eval\n  Port 2022\n")
    assert asked(tmp_path, f"Include {tmp_path / 'more'}\n", "me@eval").port == 2022


def test_a_key_file_that_is_not_there_is_not_tried(tmp_path: Path) -> None:
    assert asked(tmp_path, f"IdentityFile {tmp_path}/none\n", "me@eval").identities == ()


def test_a_configuration_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nosuchoption"):
        asked(tmp_path, "NoSuchOption yes\n", "me@eval")


def test_a_configuration_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be used"):
        resolve("me@eval", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("IdentityAgent none", None),
        ("IdentityAgent SSH_AUTH_SOCK", "/environment/agent"),
        ("IdentityAgent $OTHER_AGENT", "/other/agent"),
        ("IdentityAgent /its/own", "/its/own"),
        ("", "/environment/agent"),
    ],
)
def test_which_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: str | None) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/environment/agent")
    monkeypatch.setenv("OTHER_AGENT", "/other/agent")
    assert asked(tmp_path, f"{line}\n", "me@eval").agent == expected


def test_no_ssh_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LinkError, match="not installed") as caught:
        resolve("me@eval")
    assert "openssh-client" in caught.value.hint


def test_a_match_exec_that_hangs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_config, "TIMEOUT_S", 0.3)
    with pytest.raises(LinkError, match=r"within 0\.3 s"):
        asked(tmp_path, 'Match exec "exec sleep 1"\n', "me@eval")


# Jump hosts


def test_a_proxy_command_is_filled_in(tmp_path: Path) -> None:
    config = "Host eval\n  HostName 10.1.2.3\n  ProxyCommand relay --to %h:%p --as %r 100%%\n"
    assert asked(tmp_path, config, "me@eval:2022").proxy == (
        "sh",
        "-c",
        "exec relay --to 10.1.2.3:2022 --as me 100%",
    )


def test_the_original_name_is_what_percent_n_means(tmp_path: Path) -> None:
    config = "Host eval\n  HostName 10.1.2.3\n  ProxyCommand relay %n %h\n"
    found = asked(tmp_path, config, "me@eval")
    assert found.proxy is not None
    assert found.proxy[-1] == "exec relay eval 10.1.2.3"


def test_a_proxy_jump_becomes_a_strict_ssh_without_an_agent(tmp_path: Path) -> None:
    found = asked(tmp_path, "Host eval\n  HostName 10.1.2.3\n  ProxyJump a@first:1022,b@second\n", "me@eval:2022")
    assert found.proxy is not None
    command = " ".join(found.proxy)
    assert found.proxy[0] == "ssh"
    assert f"-F {tmp_path / 'config'}" in command
    assert "-J a@first:1022 -W 10.1.2.3:2022" in command
    assert found.proxy[-1] == "ssh://b@second"
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no", "ClearAllForwardings=yes"):
        assert option in command


def test_an_ipv6_host_behind_a_jump_is_bracketed(tmp_path: Path) -> None:
    found = asked(tmp_path, "ProxyJump first\n", "me@[::1]:2022")
    assert found.proxy is not None
    assert "[::1]:2022" in found.proxy


@pytest.mark.parametrize("line", ["ProxyJump none", "ProxyCommand none"])
def test_none_is_no_proxy(tmp_path: Path, line: str) -> None:
    assert asked(tmp_path, f"Host eval\n  {line}\n", "me@eval").proxy is None


# known_hosts


def test_no_known_hosts_is_no_key(tmp_path: Path) -> None:
    assert asked(tmp_path, "", "me@host.example").host_keys == ()


def test_another_hosts_key_and_another_ports_key_do_not_count(tmp_path: Path, key: str) -> None:
    lines = f"other.example {key}\n[host.example]:2222 {key}\nhost.example.org {key}\n"
    assert asked(tmp_path, "", "me@host.example", lines).host_keys == ()
    assert asked(tmp_path, "", "me@host.example:2222", lines).host_keys == (key,)


def test_a_hashed_name_is_found(tmp_path: Path, key: str) -> None:
    hashed = tmp_path / "hashed"
    hashed.write_text(f"host.example {key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(hashed)], check=True, capture_output=True)
    assert "host.example" not in hashed.read_text()
    assert asked(tmp_path, "", "me@host.example", hashed.read_text()).host_keys == (key,)


def test_a_revoked_key_is_no_key_wherever_it_stands(tmp_path: Path, key: str) -> None:
    assert asked(tmp_path, "", "me@host.example", f"host.example {key}\n@revoked * {key}\n").host_keys == ()
    assert asked(tmp_path, "", "me@host.example", f"@revoked * {key}\nhost.example {key} who\n").host_keys == ()


def test_a_certificate_authority_is_no_host_key_and_does_no_harm(tmp_path: Path, key: str) -> None:
    mint(tmp_path / "other")
    authority = (tmp_path / "other" / "host_ed25519.pub").read_text().strip()
    lines = f"@cert-authority * {authority}\n"
    assert asked(tmp_path, "", "me@host.example", lines).host_keys == ()
    assert asked(tmp_path, "", "me@host.example", f"{lines}host.example {key}\n").host_keys == (key,)


def test_the_preferred_kind_comes_first(tmp_path: Path, key: str) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(tmp_path / "ecdsa")], check=True, capture_output=True
    )
    ecdsa = " ".join((tmp_path / "ecdsa.pub").read_text().split()[:2])
    found = asked(tmp_path, "", "me@host.example", f"host.example {ecdsa}\nhost.example {key}\n")
    assert found.host_keys == (key, ecdsa)


def test_a_damaged_line_is_passed_over(tmp_path: Path, key: str) -> None:
    lines = f"host.example\nhost.example ssh-ed25519\nhost.example what ever\n# a remark\n\nhost.example {key}\n"
    assert asked(tmp_path, "", "me@host.example", lines).host_keys == (key,)


def test_a_host_key_alias_is_what_known_hosts_is_asked_for(tmp_path: Path, key: str) -> None:
    config = "Host eval\n  HostName 10.1.2.3\n  Port 2022\n  HostKeyAlias the-eval-box\n"
    assert asked(tmp_path, config, "me@eval", f"the-eval-box {key}\n").host_keys == (key,)


def test_two_known_hosts_files_with_a_blank_in_a_name(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "known").write_text(f"host.example {key}\n")
    config = f'Host host.example\n  UserKnownHostsFile {tmp_path}/none "{folder}/known"\n'
    assert asked(tmp_path, config, "me@host.example").host_keys == (key,)
