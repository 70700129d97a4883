"""Finds Chromium and starts it so that a page can harm nothing: private profile, no network.

As root the browser runs under an unprivileged user, so that Chromium's own sandbox works.
"""

import logging
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verifier.types import InfrastructureError

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

log = logging.getLogger(__name__)

_PLACES = ("/usr/lib/chromium/chromium", "/usr/lib/chromium-browser/chromium-browser")
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FOLDER_PREFIX = "webcoder-browser-"
_UNPRIVILEGED = 65534  # "nobody" on every Linux

# Of a switch given twice Chromium keeps the last one, so these two repeat what Playwright sets.
# The omnibox popups and the spare renderer start 3 processes beside each page's own: without them
# a page costs 0.37 CPU-seconds instead of 1.0.
_NO_FEATURES = (
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxFullPopup",
    "SpareRendererForSitePerProcess",
    "AimEnabled",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "DialMediaRouteProvider",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
    "Translate",
    "WebUSB",
)
_BLINK_SETTINGS = (
    "imageAnimationPolicy=2",  # animated pictures stand still
    "primaryHoverType=2",
    "availableHoverTypes=2",
    "primaryPointerType=4",
    "availablePointerTypes=4",
)
_FLAGS = (
    f"--disable-features={','.join(_NO_FEATURES)}",
    f"--blink-settings={','.join(_BLINK_SETTINGS)}",
    "--disable-gpu",
    "--no-pings",
    "--no-proxy-server",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    # Pictures must not depend on the machine.
    "--font-render-hinting=none",
    "--disable-lcd-text",
    # Bounds for greedy pages.
    "--js-flags=--max-old-space-size=512",
    "--disk-cache-size=33554432",
)

_RUNNER = """#!/bin/sh
# The browser's pid, for the case that it has to be killed; exec keeps it.
echo $$ > "{folder}/pid"
{prepare}exec {as_user}"{executable}" "$@"
"""
_AS_USER = (
    f"setpriv --reuid={_UNPRIVILEGED} --regid={_UNPRIVILEGED} --clear-groups --no-new-privs "
    "--inh-caps=-all --bounding-set=-all "
)
_OWN_PROFILE = f"""for argument in "$@"; do
  case "$argument" in --user-data-dir=*) chown -R {_UNPRIVILEGED} "${{argument#*=}}" ;; esac
done
"""


class BrowserNotFound(InfrastructureError):
    """No Chromium on this machine; the text says how to get one."""


def find_chromium(environ: Mapping[str, str] = os.environ) -> Path:
    """The Chromium binary: $WEBCODER_CHROMIUM, else the usual places. BrowserNotFound if none."""
    chosen = environ.get("WEBCODER_CHROMIUM", "")
    if chosen:
        if os.access(chosen, os.X_OK) and not os.path.isdir(chosen):
            return Path(chosen)
        raise BrowserNotFound(f"WEBCODER_CHROMIUM names {chosen!r}, which is no executable file")
    for place in _PLACES:
        if os.access(place, os.X_OK):
            return Path(place)
    for name in _NAMES:
        found = shutil.which(name, path=environ.get("PATH"))
        if found:
            return Path(found)
    raise BrowserNotFound(
        "no Chromium found: run `apt-get install chromium`, or set WEBCODER_CHROMIUM to the path of a Chromium binary"
    )


@dataclass(frozen=True, kw_only=True)
class Chromium:
    """A started browser and what must be put away after it."""

    browser: "Browser"
    folder: Path
    """Holds the runner script and the pid; a temporary folder of its own."""
    is_sandboxed: bool
    """Whether Chromium's own process sandbox is on."""

    def kill(self) -> None:
        """Ends every process of the browser, answering or not, and removes the folder."""
        try:
            pid = int((self.folder / "pid").read_text())
            os.killpg(pid, signal.SIGKILL)  # Playwright starts it as the leader of its own group
        except (OSError, ValueError):
            pass  # it has ended by itself, or never began
        shutil.rmtree(self.folder, ignore_errors=True)


def _remove_leftovers() -> None:
    """Folders of browsers whose program was killed before it could put them away."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        try:
            pid = int((folder / "pid").read_text())
            is_old = time.time() - folder.stat().st_mtime > 60
            if is_old and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)
        except (OSError, ValueError):
            continue  # somebody else's, or just being removed


def _write_runner(executable: Path, *, drop_privileges: bool) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
    folder.chmod(0o711)
    runner = folder / "chromium"
    runner.write_text(
        _RUNNER.format(
            folder=folder,
            prepare=_OWN_PROFILE if drop_privileges else "",
            as_user=_AS_USER if drop_privileges else "",
            executable=executable,
        )
    )
    runner.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    return folder


def use_system_node() -> None:
    """Playwright's bundled Node lacks a library on bare Debian; ours is required anyway."""
    node = shutil.which("node")
    if node:
        os.environ.setdefault("PLAYWRIGHT_NODEJS_PATH", node)


def _ways_to_start() -> list[tuple[bool, bool]]:
    """(drop privileges, Chromium's sandbox on), best first."""
    if os.geteuid() != 0:
        return [(False, True), (False, False)]
    if shutil.which("setpriv") is None:
        return [(False, False)]
    return [(True, True), (True, False), (False, False)]


async def launch(playwright: "Playwright", *, executable: Path, port: int) -> Chromium:
    """Starts the browser; `port` of 127.0.0.1 is the only address it can reach.

    Tries with Chromium's sandbox, then without where the kernel or a container forbids it.
    InfrastructureError when it does not start at all.
    """
    from playwright.async_api import Error

    # Names that end in .localhost lead to our server, everything else (addresses too) nowhere.
    network = f"--host-resolver-rules=MAP *.localhost 127.0.0.1:{port}, MAP * ~NOTFOUND"
    _remove_leftovers()
    failures: list[str] = []
    for drop, sandboxed in _ways_to_start():
        folder = _write_runner(executable, drop_privileges=drop)
        try:
            browser = await playwright.chromium.launch(
                executable_path=folder / "chromium",
                args=[*_FLAGS, network],
                chromium_sandbox=sandboxed,
                # Without this default flag Chromium keeps its popup blocker.
                ignore_default_args=["--disable-popup-blocking"],
                # Nothing of our own environment: it may hold keys.
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"},
                handle_sigint=False,
                timeout=30_000,
            )
        except Error as error:
            failures.append(str(error).splitlines()[0][:300])
            shutil.rmtree(folder, ignore_errors=True)
            continue
        if not sandboxed:
            log.warning("Chromium runs without its own sandbox (%s)", "; ".join(failures) or "root")
        return Chromium(browser=browser, folder=folder, is_sandboxed=sandboxed)
    raise InfrastructureError(f"{executable} does not start: {'; '.join(failures)}")
