"""The system calls a sandbox may not make, as a filter program for bubblewrap.

Compiled by libseccomp through ctypes: the library comes with Debian, a Python binding does not.
A deny-list, not an allow-list: Node, Vite and TypeScript need several hundred calls and gain a
few with every release; what is refused here is what only an attack on the kernel would want.
"""

import ctypes
import errno
import os

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_EQUAL, _MASKED_EQUAL = 4, 7

DENIED = (
    "acct add_key adjtimex bpf clock_adjtime clock_settime delete_module fanotify_init finit_module "
    "fsconfig fsmount fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm "
    "iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages mount mount_setattr "
    "move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open "
    "personality pivot_root process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot "
    "request_key set_mempolicy setdomainname sethostname setns settimeofday swapoff swapon syslog umount "
    "umount2 unshare uselib userfaultfd vhangup"
)

# New mount, cgroup, uts, ipc, user, pid and network namespace.
_NAMESPACE_FLAGS = (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_TERMINAL_IOCTLS = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX: typing into somebody else's terminal
_SOCKET_FAMILIES = (17, 21, 29, 30, 31, 38, 40, 44)  # packet, rds, can, tipc, bluetooth, alg, vsock, xdp


class _Comparison(ctypes.Structure):
    """`struct scmp_arg_cmp`: argument `arg` compared by `op` with `a` (and `b`)."""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def build_filter() -> bytes | None:
    """The program as bytes, or None where libseccomp is not installed."""
    try:
        lib = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return None
    lib.seccomp_init.restype = ctypes.c_void_p
    lib.seccomp_init.argtypes = [ctypes.c_uint32]
    lib.seccomp_release.argtypes = [ctypes.c_void_p]
    lib.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(_Comparison),
    ]
    context = lib.seccomp_init(_ALLOW)
    try:
        _add_rules(lib, context)
        return _export(lib, context)
    finally:
        lib.seccomp_release(context)


def _add_rules(lib: ctypes.CDLL, context: int) -> None:
    def deny(name: str, code: int, *comparisons: _Comparison) -> None:
        number = lib.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # unknown on this architecture or to this library
            return
        array = (_Comparison * max(1, len(comparisons)))(*comparisons)
        status = lib.seccomp_rule_add_array(context, _ERRNO | code, number, len(comparisons), array)
        if status != 0:
            raise OSError(-status, f"libseccomp refused a rule for {name}")

    for name in DENIED.split():
        deny(name, errno.EPERM)
    # The flags of clone3 are behind a pointer, where a filter cannot look: "not implemented" makes
    # the C library fall back to clone, whose flags are checked here.
    deny("clone3", errno.ENOSYS)
    for flag in _NAMESPACE_FLAGS:
        deny("clone", errno.EPERM, _Comparison(0, _MASKED_EQUAL, flag, flag))
    for request in _TERMINAL_IOCTLS:
        deny("ioctl", errno.EPERM, _Comparison(1, _MASKED_EQUAL, 0xFFFFFFFF, request))
    for family in _SOCKET_FAMILIES:
        deny("socket", errno.EAFNOSUPPORT, _Comparison(0, _EQUAL, family, 0))


def _export(lib: ctypes.CDLL, context: int) -> bytes:
    descriptor = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    try:
        status = lib.seccomp_export_bpf(context, descriptor)
        if status != 0:
            raise OSError(-status, "libseccomp could not export the filter")
        size = os.lseek(descriptor, 0, os.SEEK_END)
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)
