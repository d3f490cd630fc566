"""`warmpath top` on a terminal of its own: `top_terminal.py BINARY ADMIN`. Prints `ok`, or fails.

Whatever ends it, the terminal is as it was: the other screen left, the cursor shown, and lines echoed again."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

BINARY, ADMIN = sys.argv[1:]
ROWS, COLUMNS = 24, 80
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b.|(.)", re.DOTALL)
LEFT, SHOWN = b"\x1b[?1049l", b"\x1b[?25h"


class Top:
    def __init__(self):
        # A copy of the terminal stays open here, so that its settings can be read after the command has ended.
        self.ours, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(self.terminal)
        self.said = b""
        self.child = os.fork()
        if self.child == 0:
            login(self.terminal)
            os.environ["TERM"] = "xterm-256color"
            os.execv(BINARY, [BINARY, "top", "--admin", ADMIN, "--interval", "100"])

    def read(self, seconds):
        while select.select([self.ours], [], [], seconds)[0]:
            self.said += os.read(self.ours, 65536)
            seconds = 0

    def screen(self):
        """What the terminal shows: only what changes is sent."""
        cells, row, column = [[" "] * COLUMNS for _ in range(ROWS)], 0, 0
        for match in SEQUENCE.finditer(self.said.decode(errors="ignore")):
            arguments, command, letter = match.groups()
            if command == "H":
                row, column = [int(number or 1) - 1 for number in (arguments or "1;1").split(";")]
            elif command == "J":
                cells = [[" "] * COLUMNS for _ in range(ROWS)]
            elif letter and letter >= " ":
                cells[row][column] = letter
                column = min(column + 1, COLUMNS - 1)
        return "\n".join("".join(line).rstrip() for line in cells)

    def until(self, text):
        deadline = time.monotonic() + 20
        while text not in self.screen():
            assert time.monotonic() < deadline, (text, self.screen())
            self.read(0.1)

    def press(self, keys):
        os.write(self.ours, keys)

    def ends(self):
        deadline = time.monotonic() + 20
        while True:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            # What it said at last is read after it has ended.
            self.read(0 if pid else 0.05)
            if pid:
                break
            assert time.monotonic() < deadline, self.said
        code = os.waitstatus_to_exitcode(status)
        after = termios.tcgetattr(self.terminal)
        assert code == 0 and LEFT in self.said and SHOWN in self.said, (code, self.said)
        assert after == self.before and after[3] & termios.ECHO, "lines are echoed again"


def login(terminal):
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for stream in range(3):
        os.dup2(terminal, stream)


def begun():
    top = Top()
    top.until("\n engine-2 ")
    assert termios.tcgetattr(top.terminal)[3] & termios.ECHO == 0, "keys are read one by one"
    return top


top = begun()
top.press(b"?")
top.until("│ c  have its engine empty its cache   │")
top.press(b"x")
top.until("\nq quit  tab pane")
top.press(b"jd")
top.until("\n>engine-2 ")
top.until("\nDrain engine-2? It finishes what it has.  y/n")
top.press(b"y")
top.until("\ndrain engine-2: draining")
top.until("\n>engine-2    draining ")
top.press(b"q")
top.ends()

top = begun()
top.press(b"\x03")
top.ends()

for number in (signal.SIGTERM, signal.SIGINT):
    top = begun()
    os.kill(top.child, number)
    top.ends()

print("ok")
