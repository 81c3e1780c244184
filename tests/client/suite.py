"""What the suites of the official clients share: a shipped model that is served, and a count of the calls that were made."""
import collections
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "http"), os.path.join(HERE, "..", "format")]
import harness

LEAST_CALLS = 40
calls = collections.Counter()


class Shipped(harness.Server):
    def __init__(self):
        super().__init__([harness.TOKENFOLD, "serve", "models/fold-s", "--port", "0", "--no-progress", "--parallel", "4"])


def note(request):
    """A hook of the clients' HTTP library: every request that a client sends is a call."""
    calls[f"{request.method} {request.url.path}"] += 1


async def note_async(request):
    note(request)


def check_count(client):
    """The last test of a suite."""
    for call, n in sorted(calls.items()):
        print(f"         {n:3} {call}")
    print(f"         {sum(calls.values())} calls of the official {client} client, {LEAST_CALLS} at least")
    assert sum(calls.values()) >= LEAST_CALLS, calls


def refused(kind, status, ask, **more):
    """The client raises its own kind of error, which says why."""
    try:
        ask(**more)
    except kind as e:
        assert e.status_code == status and e.body, (e.status_code, e.body)
        return e
    raise AssertionError(f"was not refused: {more}")
