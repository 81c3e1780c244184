#!/usr/bin/env python3
"""`chat` on a terminal: Ctrl-C ends a reply, or gives up a line that is being typed; Ctrl-D leaves. Needs nothing but
the standard library."""
import os
import pty
import select
import sys
import termios
import time

BINARY = os.environ.get("TOKENFOLD", "build/tokenfold")
PROMPT = b"\r\n> "


def expect(terminal, said, word):
    """Reads until the word has come; what was read."""
    deadline = time.monotonic() + 60
    while word not in said:
        assert select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], (word, said)
        try:
            more = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            more = b""
        assert more, (word, said)
        said += more
    return said


def type_in(keys):
    deadline = time.monotonic() + 60
    while termios.tcgetattr(terminal)[3] & termios.ICANON:  # the prompt comes before lines can be edited
        assert time.monotonic() < deadline, keys
        time.sleep(0.02)
    os.write(terminal, keys)


try:
    pid, terminal = pty.fork()
except OSError as error:
    print(f"SKIP no terminal can be made here: {error}")
    sys.exit(77)
if pid == 0:
    os.environ["TERM"] = "xterm"
    os.execv(BINARY, [BINARY, "chat", "models/fold-s", "--backend", "cpu", "--no-progress", "--temperature", "0"])
expect(terminal, b"", PROMPT)
type_in(b"\x03")
expect(terminal, b"", PROMPT)
type_in(b"My key is 42.\x03")  # is no part of what follows
expect(terminal, b"", PROMPT)
type_in(b"Hello\r")
said = expect(terminal, b"", PROMPT)
assert b"Hello!" in said, said
type_in(b"\x04")
deadline = time.monotonic() + 60
while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
    assert time.monotonic() < deadline, "Ctrl-D does not leave"
    time.sleep(0.05)
assert os.waitstatus_to_exitcode(done[1]) == 0, done
print("chat: ok")
sys.exit(0)
