"""Ways to spoil input, drawn from a random.Random so that a failing draw can be made again."""
import copy

VALUES = [None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -2**63 - 1, 0.5, 1e308, -0.0, "", "x",
          "auto", "\u0000", "\ud83d", "<|im_end|>", "a" * 5000, [], {}, [[]], [{}], {"": ""}, [None], {"type": "text"},
          [0] * 2000]
PARTS = [b"[" * 70, b'{"a":' * 70, b"\\ud83d", b"\xff\xfe", b"\0", b'"', b",,", b"1e999", b"NaN"]


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from places(member, (*path, key))


def spoil_json(rng, value, names, values=VALUES, times=(1, 1, 2, 3)):
    """A copy of a JSON value in which members were removed, replaced by `values`, or added under `names`."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice(times)):
        place = rng.choice(list(places(value))[1:] or [()])
        if not place:
            break
        inner = value
        for key in place[:-1]:
            inner = inner[key]
        what = rng.randrange(4)
        if what == 0:
            del inner[place[-1]]
        elif what == 1 and isinstance(inner, dict):
            inner[rng.choice(names)] = copy.deepcopy(rng.choice(values))
        else:
            inner[place[-1]] = copy.deepcopy(rng.choice(values))
    return value


def spoil_bytes(rng, data, times=(1, 2, 5, 20)):
    """A copy of bytes in which some were overwritten, removed, put in or repeated."""
    data = bytearray(data)
    for _ in range(rng.choice(times)):
        at = rng.randrange(len(data) + 1)
        what = rng.randrange(5)
        if what == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif what == 1:
            del data[at:at + rng.randrange(1, 8)]
        elif what == 2:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 8)))
        elif what == 3:
            data[at:at] = rng.choice(PARTS)
        else:
            data[at:at] = bytes(data[at:at + 40])
    return bytes(data)
