"""What a command may try, and that the host does not notice."""

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.protocol import ExecResult, Sandbox

pytestmark = pytest.mark.sandbox


def bash(sandbox: Sandbox, command: str, timeout_s: float = 20.0) -> ExecResult:
    return sandbox.exec(["bash", "-c", command], timeout_s=timeout_s)


def processes_with(word: str) -> list[str]:
    """Command lines on the host that contain `word`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if word in line:
            found.append(line)
    return found


def strong(sandboxes: LocalSandboxes) -> None:
    if sandboxes.weaknesses:
        pytest.skip(f"this machine does not enforce it: {sandboxes.weaknesses}")


def test_fork_bomb_ends_at_the_time_limit(sandbox: Sandbox) -> None:
    started = time.monotonic()
    ended = bash(sandbox, "bomb() { bomb | bomb & }; bomb; sleep 31.4159", timeout_s=1.0)
    assert time.monotonic() - started < 10
    assert ended.timed_out or ended.exit_code != 0
    assert processes_with("31.4159") == []
    assert bash(sandbox, "echo alive").output == "alive\n"


def test_memory_bomb_kills_only_itself(sandboxes: LocalSandboxes, sandbox: Sandbox) -> None:
    strong(sandboxes)
    ended = sandbox.exec(["node", "-e", "const a=[];for(;;)a.push(Buffer.alloc(1<<24,1))"], timeout_s=30)
    assert ended.exit_code not in (None, 0)
    assert bash(sandbox, "echo alive").output == "alive\n"


def test_disk_is_bounded_in_every_writable_place(sandboxes: LocalSandboxes, sandbox: Sandbox) -> None:
    strong(sandboxes)
    ended = bash(
        sandbox, "for d in /workspace /tmp $HOME; do head -c 100M /dev/zero > $d/fill; done; du -sm /tmp $HOME ."
    )
    assert "No space left on device" in ended.output
    sizes = [int(line.split()[0]) for line in ended.output.splitlines() if line[0].isdigit()]
    assert sum(sizes) <= 25
    with pytest.raises(OSError, match="No space left"):
        sandbox.write("more.txt", b"x" * 1_000_000)
    assert bash(sandbox, "rm -f /workspace/fill; echo alive").output == "alive\n"


def test_number_of_files_is_bounded(sandboxes: LocalSandboxes, sandbox: Sandbox) -> None:
    strong(sandboxes)
    ended = sandbox.exec(
        ["python3", "-c", "import os\nfor i in range(200000): os.close(os.open(f'f{i}', os.O_CREAT))"], timeout_s=60
    )
    assert "No space left on device" in ended.output


def test_output_flood_is_drained_and_counted(sandbox: Sandbox) -> None:
    ended = bash(sandbox, "head -c 30000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert ended.exit_code == 0
    assert ended.output == "x" * 20_000
    assert ended.dropped_bytes == 30_000_000 + len("\nlast\n") - 20_000


def test_endless_output_ends_at_the_time_limit(sandbox: Sandbox) -> None:
    ended = bash(sandbox, "yes", timeout_s=0.7)
    assert ended.timed_out
    assert ended.seconds < 5
    assert ended.dropped_bytes > 0


@pytest.mark.parametrize(
    "command",
    [
        "(setsid nohup sleep 27.1828 >/dev/null 2>&1 &)",
        "setsid sleep 27.1828 & disown; echo started",  # keeps the output pipe open
        "trap '' TERM INT HUP; (trap '' TERM; sleep 27.1828) & sleep 27.1828",
    ],
)
def test_no_process_survives_its_command(sandbox: Sandbox, command: str) -> None:
    ended = bash(sandbox, command, timeout_s=1.0)
    assert ended.seconds < 5
    assert processes_with("sleep 27.1828") == []


def test_kill_everybody_kills_only_the_command(sandbox: Sandbox) -> None:
    ended = bash(sandbox, "sleep 30 & kill -9 -1; echo not reached")
    assert ended.exit_code == 137 or "not reached" in ended.output  # bash spares itself on some systems
    assert not ended.timed_out
    assert bash(sandbox, "echo alive").output == "alive\n"


def test_links_lead_nowhere(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("do-not-tell")
    os.chmod(tmp_path, 0o755)
    os.chmod(secret, 0o644)
    bash(sandbox, f"ln -s {secret} out.txt; ln -s {tmp_path} folder; ln -s / root; ln -s /proc/self/fd fds; mkdir real")
    for path in ("out.txt", "folder/secret.txt", f"root{secret}", "root/etc/passwd", "fds/0"):
        with pytest.raises(FileNotFoundError):
            sandbox.read(path)
    assert sandbox.list() == sandbox.list("folder") == sandbox.list("root/etc") == []
    with pytest.raises(OSError):  # noqa: PT011 - which error depends on what stands in the way
        sandbox.write("folder/new.txt", b"x")
    sandbox.write("out.txt", b"mine")  # replaces the link, not its target
    assert secret.read_text() == "do-not-tell"
    assert list(tmp_path.iterdir()) == [secret]


def test_a_link_that_appears_while_we_read_leads_nowhere(sandbox: Sandbox) -> None:
    race = (
        "import os, time\n"
        "os.mkdir('real'); open('real/passwd', 'w').write('fine'); os.symlink('/etc', 'link')\n"
        "end = time.monotonic() + 1.5\n"
        "while time.monotonic() < end:\n"
        "    for name in ('real', 'link'): os.rename(name, 'now'); os.rename('now', name)\n"
    )
    ended: list[ExecResult] = []
    worker = threading.Thread(target=lambda: ended.append(sandbox.exec(["python3", "-c", race], timeout_s=20)))
    worker.start()
    seen = set()
    while worker.is_alive():
        try:
            seen.add(sandbox.read("now/passwd"))
        except FileNotFoundError:
            continue
    worker.join()
    assert ended[0].exit_code == 0
    assert seen == {b"fine"}


def test_host_files_and_processes_are_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("do-not-tell")
    told = bash(
        sandbox,
        f"cat {tmp_path}/secret.txt /etc/shadow /root/.bashrc /etc/hostname; ls -A /root /home /mnt /var /srv /run;"
        "ls /proc | grep -c '^[0-9]'; id -u; echo x > /etc/x; echo x > /usr/bin/x; echo x > /x; echo x > /dev/x",
    ).output
    assert "do-not-tell" not in told
    assert told.count("No such file or directory") >= 4
    assert told.count("Read-only file system") == 4
    assert "\n1000\n" in told
    num_processes = [int(line) for line in told.splitlines() if line.isdigit() and line != "1000"]
    assert num_processes == [min(num_processes)]
    assert num_processes[0] <= 5
    assert "agent\n" in bash(sandbox, "ls /home").output


def test_host_paths_do_not_show(sandboxes: LocalSandboxes, sandbox: Sandbox) -> None:
    told = bash(sandbox, "cat /proc/*/cmdline /proc/*/environ; ls -l /proc/self/fd /proc/1/fd").output
    assert str(sandboxes.run_dir) not in told
    assert "memfd" not in told


def test_no_network_but_its_own_loopback(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = (
            "import socket, threading\n"
            f"for address in [('127.0.0.1', {port}), ('1.1.1.1', 53), ('169.254.169.254', 80)]:\n"
            "    try: socket.create_connection(address, 2); print('reached', address)\n"
            "    except OSError: print('refused')\n"
            f"s = socket.create_server(('127.0.0.1', {port}))\n"
            f"c = socket.create_connection(('127.0.0.1', {port}), 2); print('own loopback works')\n"
        )
        told = sandbox.exec(["python3", "-c", script], timeout_s=20).output
    assert told == "refused\nrefused\nrefused\nown loopback works\n"


def test_kernel_doors_are_shut(sandboxes: LocalSandboxes, sandbox: Sandbox) -> None:
    told = bash(
        sandbox,
        "unshare -U true && echo OPEN; unshare -m true && echo OPEN; mount -t tmpfs t /tmp && echo OPEN;"
        "mknod d b 8 0 && echo OPEN; echo 1 > /proc/sys/kernel/sysrq && echo OPEN; chroot / true && echo OPEN;"
        "dmesg >/dev/null 2>&1 && echo OPEN; umount /usr && echo OPEN; grep -E 'CapEff|NoNewPrivs' /proc/self/status",
    ).output
    assert "OPEN" not in told
    assert "CapEff:\t0000000000000000\n" in told
    assert "NoNewPrivs:\t1\n" in told
    if not any("libseccomp" in weakness for weakness in sandboxes.weaknesses):
        script = (
            "import ctypes, socket\n"
            "print(ctypes.CDLL(None).ptrace(0, 0, 0, 0))\n"
            "try: socket.socket(38, socket.SOCK_SEQPACKET); print('OPEN')\n"
            "except OSError: print('shut')\n"
        )
        assert sandbox.exec(["python3", "-c", script], timeout_s=20).output == "-1\nshut\n"


def test_set_user_id_files_give_nothing(sandbox: Sandbox) -> None:
    told = bash(sandbox, "cp /usr/bin/id me; chmod 4755 me; ./me -u; ./me -u").output
    assert told == "1000\n1000\n"
