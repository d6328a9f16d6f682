"""A headless Chromium for the tests that look at a page, and what it says of one.

It comes from the environment (`BATCH_INVARIANCE_CHROMIUM`) or from the usual names on the path.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHROMIUM_VARIABLE = "BATCH_INVARIANCE_CHROMIUM"
REQUIRE_VARIABLE = "BATCH_INVARIANCE_REQUIRE_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 120


@dataclass(frozen=True)
class Chromium:
    """A browser that was found, and a folder of its own for what it writes."""

    path: str
    folder: Path

    def _call(self, *words: str) -> str:
        command = [
            self.path,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            f"--user-data-dir={self.folder / 'profile'}",
            *words,
        ]
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
        return done.stdout.decode("utf-8")

    def screenshot(
        self, page: Path, width: int, height: int, dark: bool = False, scale: float = 1.0
    ) -> Picture:
        """The page at its top, in a window of that size in its own pixels, of which `scale` squared
        are in the picture."""
        out = self.folder / f"{page.stem}-{width}.png"
        scheme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        size = f"--window-size={width},{height}"
        scheme.append(f"--force-device-scale-factor={scale}")
        self._call(size, *scheme, f"--screenshot={out}", page.as_uri())
        return read_png(out.read_bytes())

    def pdf(self, page: Path) -> bytes:
        """The page as it is printed."""
        out = self.folder / f"{page.stem}.pdf"
        self._call(f"--print-to-pdf={out}", page.as_uri())
        return out.read_bytes()

    def measure(self, page: str, width: int, script: str, fragment: str = "") -> Any:
        """What `script` returns inside the page in a frame of that width.

        The page's own policy is taken out, so that a script that others smuggled in would run: it
        would find `alert` waiting for it. `script` is the body of a function of the frame's window
        `w` and document `d`.
        """
        bare = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
        assert bare != page
        spy = "<script>window.alarms = []; window.alert = (x) => window.alarms.push(x)</script>"
        bare = bare.replace("<head>", f"<head>{spy}", 1)
        inner, outer = self.folder / "inner.html", self.folder / "outer.html"
        inner.write_text(bare, "utf-8")
        outer.write_text(
            f'<body><iframe srcdoc="{html.escape(bare)}" width="{width}" height="900"></iframe>'
            "<pre id=said></pre><script>"
            "onload = () => { const w = frames[0], d = w.document;"
            f"if ({json.dumps(fragment)}) w.location.hash = {json.dumps(fragment)};"
            "setTimeout(() => { document.getElementById('said').textContent = "
            f"JSON.stringify((() => {{ {script} }})()); document.title = 'done' }}, 100) }}"
            "</script></body>",
            "utf-8",
        )
        dom = self._call("--virtual-time-budget=5000", "--dump-dom", outer.as_uri())
        said = re.search(r'<pre id="said">(.*?)</pre>', dom, re.DOTALL)
        assert said is not None
        return json.loads(html.unescape(said[1]))


@dataclass(frozen=True)
class Picture:
    """Pixels of a PNG, three or four bytes each."""

    width: int
    height: int
    rows: tuple[bytes, ...]
    depth: int

    def colours(self) -> dict[tuple[int, int, int], int]:
        """Colour -> number of pixels."""
        found: dict[tuple[int, int, int], int] = {}
        for row in self.rows:
            for i in range(0, len(row), self.depth):
                colour = (row[i], row[i + 1], row[i + 2])
                found[colour] = found.get(colour, 0) + 1
        return found


def read_png(data: bytes) -> Picture:
    """An 8-bit RGB or RGBA PNG without interlacing. Source: the PNG specification, 2nd edition."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, bits, kind, _, _, interlace = struct.unpack(">IIBBBBB", data[16:29])
    assert (bits, interlace) == (8, 0)
    depth = {2: 3, 6: 4}[kind]
    place, packed = 8, b""
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"IDAT":
            packed += data[place + 8 : place + 8 + length]
        place += length + 12
    raw, stride = zlib.decompress(packed), width * depth
    before, rows = bytearray(stride), []
    for y in range(height):
        start = y * (stride + 1)
        before = _unfilter(
            raw[start], bytearray(raw[start + 1 : start + 1 + stride]), before, depth
        )
        rows.append(bytes(before))
    return Picture(width, height, tuple(rows), depth)


def _unfilter(kind: int, row: bytearray, above: bytearray, depth: int) -> bytearray:
    for i in range(len(row) if kind else 0):
        left = row[i - depth] if i >= depth else 0
        up, corner = above[i], above[i - depth] if i >= depth else 0
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = up
        elif kind == 3:
            guess = (left + up) // 2
        else:
            sides = (left, up, corner)
            guess = min(sides, key=lambda side: abs(left + up - corner - side))
        row[i] = (row[i] + guess) & 255
    return row


def find_chromium() -> tuple[str | None, str]:
    """The path of a browser, or None and why there is none."""
    named = os.environ.get(CHROMIUM_VARIABLE)
    if named:
        return shutil.which(named), f"{CHROMIUM_VARIABLE}={named} is no executable"
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return found, f"no Chromium: install one, or set {CHROMIUM_VARIABLE}"
