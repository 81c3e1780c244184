"""Random schemas of the subset that docs/structured-output.md lists, values that are valid for them, and schemas that
are refused. Shared by the tests of the compiler and of the server; everything follows from the generator given."""
import datetime
import ipaddress
import json
import random
import re
import uuid

try:
    import jsonschema
except ImportError:
    jsonschema = None  # those that need problem() skip

WORDS = ["name", "city", "n", "tags", "value", "kind", "x", "a b", "größe", "ключ", "\"q\"", "a/b", "</t>", "tab\t"]
TEXTS = ["", "a", "Paris", "two words", "é中😀", "with \"quotes\"", "back\\slash", "line\nbreak", "</parameter>", "<a>"]
PATTERNS = [("^[a-z]{2,5}$", lambda r: "".join(r.choice("abcz") for _ in range(r.randint(2, 5)))),
            ("^(red|green|blue)$", lambda r: r.choice(["red", "green", "blue"])),
            (r"^\d{3}-\d{2,4}$", lambda r: f"{r.randrange(1000):03}-{r.randrange(10 ** 4):04}"),
            (r"^[A-Z]\w*$", lambda r: r.choice(["A", "Bcd", "Z_9"])),
            (r"x+y?", lambda r: r.choice(["x", "axy", "xx!", "..x.."])),
            (r"^[^\"\\aeiou]{1,6}$", lambda r: r.choice(["xyz", "B", "#1", "é"])),
            (r"^(?:ab|c[de]){1,3}$", lambda r: "".join(r.choice(["ab", "cd", "ce"]) for _ in range(r.randint(1, 3)))),
            (r"^.{2}\.$", lambda r: r.choice(["ab.", "é!.", "中中."])),
            (r"^\s|z$", lambda r: r.choice([" a", "abcz", "z"])),
            (r"^a|b\.c", lambda r: r.choice(["a", "apple", "xb.cx"]))]
FORMATS = {"date": "2024-02-17", "time": "23:59:01Z", "date-time": "1999-12-31T00:00:00.5+01:30",
           "uuid": "0123abcd-89ef-0123-4567-89abcdef0123", "ipv4": "192.168.0.255", "email": "a.b@example.org"}



def has_format(name, text):
    """Whether a string has a format of ours, by Python's own parsers."""
    try:
        if name == "date":
            datetime.date.fromisoformat(text)
        elif name == "time":
            assert re.search("(Z|[-+]..:..)$", text) and datetime.time.fromisoformat(text)
        elif name == "date-time":
            assert text[10:11] == "T" and re.search("(Z|[-+]..:..)$", text) and datetime.datetime.fromisoformat(text)
        elif name == "uuid":
            assert str(uuid.UUID(text)) == text
        elif name == "ipv4":
            ipaddress.IPv4Address(text)
        else:
            assert re.fullmatch(r"[\w.+-]+@[a-z0-9-]+(\.[a-z0-9-]+)+", text)
        return True
    except (ValueError, AssertionError):
        return False


class Schemas:
    def __init__(self, seed, bounded=False):
        self.r = random.Random(seed)
        self.defs = {}
        self.bounded = bounded  # every string, array and map has an end, so that a small model comes to it

    def make(self):
        """A schema of an object, with definitions that may be recursive."""
        self.defs = {}
        if self.r.random() < 0.3:
            self.defs["node"] = None
            self.defs["node"] = self.node()
        schema = self.object(0) if self.r.random() < 0.9 else self.any_of(0)
        if self.defs:
            schema = {**schema, "$defs": self.defs}
        return schema

    def node(self):
        link = {"$ref": "#/$defs/node"}
        optional = {"anyOf": [link, {"type": "null"}]}
        if not self.bounded and self.r.random() < 0.5:  # a tree
            optional = {"type": "array", "items": link, "maxItems": 2}
        return {"type": "object", "properties": {"v": self.scalar(), "next": optional}, "required": ["v", "next"],
                "additionalProperties": False}

    def value(self, depth):
        kinds = [self.scalar] * 4
        if depth < 3:
            kinds += [self.array, self.object, self.any_of, self.one_of] if depth < 2 else [self.array]
        if self.defs:
            kinds.append(self.link)
        if not self.bounded and depth > 0:
            kinds.append(self.anything)
        kind = self.r.choice(kinds)
        return kind() if kind in (self.scalar, self.link, self.anything) else kind(depth + 1)

    def link(self):
        return {"$ref": "#/$defs/node", **({"description": "a link"} if self.r.random() < 0.3 else {})}

    def anything(self):
        return self.r.choice([{}, True, {"type": "object"}, {"type": "array"}, {"type": "object", "properties": {}}])

    def scalar(self):
        return self.r.choice([self.string, self.string, self.number, self.integer, self.boolean, self.listed, self.several])()

    def boolean(self):
        return {"type": self.r.choice(["boolean", "boolean", "null"])}

    def string(self):
        kind = self.r.randrange(5)
        if kind == 0:
            return {"type": "string", "pattern": self.r.choice(PATTERNS[:4] if self.bounded else PATTERNS)[0],
                    **({"maxLength": 10} if self.bounded else {})}
        if kind == 1:
            return {"type": "string", "format": self.r.choice(list(FORMATS))}
        least = self.r.choice([0, 0, 1, 3])
        schema = {"type": "string"}
        if least:
            schema["minLength"] = least
        if self.bounded or self.r.random() < 0.6:
            schema["maxLength"] = least + self.r.choice([0, 1, 5, 12])
        return schema

    def bounds(self, schema, whole):
        low = self.r.choice([-1000, -17, -1, 0, 0, 1, 5, 99]) + (0 if whole else self.r.choice([0, 0.5, 0.125, 0.1, 0.678, 0.0001]))
        span = self.r.choice([1, 2, 9, 10, 300, 99999]) if whole else self.r.choice([0.5, 1, 2.25, 1000])
        low, span = round(low, 9), round(span, 9)
        if self.r.random() < 0.7:
            schema[self.r.choice(["minimum", "exclusiveMinimum"])] = low
        if self.r.random() < 0.7:
            schema[self.r.choice(["maximum", "exclusiveMaximum"])] = round(low + span + (1 if whole else 0), 9)
        return schema

    def integer(self):
        return self.bounds({"type": "integer"}, True)

    def number(self):
        return self.bounds({"type": "number"}, False)

    def listed(self):
        values = self.r.sample(["a", "ab", "b c", "é", "\"", 1, -2, 2.5, True, None, [1, "x"], {"k": [None]}, "</x>"], 3)
        if self.r.random() < 0.3:
            return {"const": values[0]}
        texts = [v for v in values if isinstance(v, str)]
        return {"type": "string", "enum": texts} if texts and self.r.random() < 0.5 else {"enum": values}

    def several(self):
        return {"type": self.r.sample(["string", "integer", "null", "boolean"], 2), **({"maxLength": 6} if self.bounded else {})}

    def array(self, depth):
        least = self.r.choice([0, 0, 1, 2])
        schema = {"type": "array", "items": self.value(depth)}
        if least:
            schema["minItems"] = least
        if self.bounded or self.r.random() < 0.5:
            schema["maxItems"] = least + self.r.choice([0, 1, 2])
        return schema

    def object(self, depth):
        if not self.bounded and self.r.random() < 0.1:
            return {"type": "object", "additionalProperties": self.value(depth + 1)}
        names = self.r.sample(WORDS, self.r.randint(1, 4))
        schema = {"type": "object", "properties": {n: self.value(depth) for n in names}}
        required = [n for n in names if self.r.random() < 0.7]
        if required:
            schema["required"] = required
        if self.r.random() < 0.7:
            schema["additionalProperties"] = False
        if self.r.random() < 0.2:
            schema["title"] = "T"
        return schema

    def any_of(self, depth):
        return {"anyOf": [self.value(depth) for _ in range(self.r.randint(1, 3))]}

    def one_of(self, depth):
        if self.r.random() < 0.5:
            return {"oneOf": [self.string(), self.integer(), {"type": "null"}]}
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, "v": self.value(depth + 1)},
                           "required": ["kind", "v"], "additionalProperties": False} for k in ("p", "q", 3)]}


# ---- values ----

class Values:
    """Values of a schema as the grammar writes them: members in order, none that is not named."""

    def __init__(self, root, seed):
        self.root, self.r = root, random.Random(seed)

    def make(self, s=None, depth=0):
        s = self.root if s is None else s
        r = self.r
        if s is True or s == {}:
            return r.choice([None, True, 0, -1.5, "x", [], {"any": [1]}])
        if "$ref" in s:
            return self.make(self.root["$defs"][s["$ref"].split("/")[-1]] if s["$ref"] != "#" else self.root, depth + 1)
        for key in ("anyOf", "oneOf"):
            if key in s:
                plain = [a for a in s[key] if a is True or "$ref" not in a]
                return self.make(r.choice(plain if depth > 4 and plain else s[key]), depth + 1)
        if "const" in s:
            return s["const"]
        if "enum" in s:
            return r.choice(s["enum"])
        kind = s["type"] if isinstance(s["type"], str) else r.choice(s["type"])
        return getattr(self, "make_" + kind)(s, depth)

    def make_null(self, s, depth):
        return None

    def make_boolean(self, s, depth):
        return self.r.random() < 0.5

    def make_string(self, s, depth):
        if "pattern" in s:
            return dict(PATTERNS)[s["pattern"]](self.r)
        if "format" in s:
            return FORMATS[s["format"]]
        low, high = s.get("minLength", 0), s.get("maxLength", 40)
        text = self.r.choice(TEXTS) + "".join(self.r.choice("ab é中") for _ in range(low))
        return text[:high]

    def make_integer(self, s, depth):
        low = max(s.get("minimum", -10 ** 14), s.get("exclusiveMinimum", -10 ** 14) + 1)
        high = min(s.get("maximum", 10 ** 14), s.get("exclusiveMaximum", 10 ** 14) - 1)
        return self.r.choice([low, high, self.r.randint(low, high)])

    def make_number(self, s, depth):
        low, high = max(s.get("minimum", -1e6), s.get("exclusiveMinimum", -1e6)), min(
            s.get("maximum", 1e6), s.get("exclusiveMaximum", 1e6))
        x = self.r.choice([low, high, round((low + high) / 2, 5), round(self.r.uniform(low, high), 3)])
        inside = s.get("exclusiveMinimum", -1e9) < x < s.get("exclusiveMaximum", 1e9) and low <= x <= high
        x = x if inside else round((low + high) / 2, 5)
        return int(x) if x == int(x) and self.r.random() < 0.5 else x

    def make_array(self, s, depth):
        low = s.get("minItems", 0)
        high = s.get("maxItems", low + 2)
        n = low if depth > 4 else self.r.randint(low, high)
        return [self.make(s.get("items", True), depth + 1) for _ in range(n)]

    def make_object(self, s, depth):
        if not s.get("properties"):
            extra = s.get("additionalProperties", True)
            return {k: self.make(extra, depth + 1) for k in self.r.sample(WORDS, self.r.randint(0, 2))} if extra else {}
        must = s.get("required", [])
        return {k: self.make(v, depth + 1) for k, v in s["properties"].items()
                if k in must or (depth < 4 and self.r.random() < 0.5)}


_checker = None


def problem(schema, text):
    """What is wrong with a text as JSON of a schema, or None."""
    global _checker
    if _checker is None:
        _checker = jsonschema.FormatChecker(formats=())
        for name in FORMATS:
            _checker.checks(name)(lambda v, name=name: not isinstance(v, str) or has_format(name, v))
    try:
        value = json.loads(text)
    except ValueError as e:
        return f"no JSON: {e}"
    error = next(iter(jsonschema.Draft202012Validator(schema, format_checker=_checker).iter_errors(value)), None)
    return error and error.message


# ---- what is refused: the schema, and the pointer that the sentence begins with ----

REFUSED = [
    ({"type": "notatype"}, "/type"), ({"type": 42}, "/type"), ({"type": []}, "/type"), ({"type": ["string", "xml"]}, "/type"),
    ({"type": "string", "pattern": "*a"}, "/pattern"), ({"type": "string", "pattern": "(?<=x)+"}, "/pattern"),
    ({"type": "string", "pattern": "{2,3}"}, "/pattern"), ({"type": "string", "pattern": "a{5,2}"}, "/pattern"),
    ({"type": "string", "pattern": "["}, "/pattern"), ({"type": "string", "pattern": "\\"}, "/pattern"),
    ({"type": "string", "pattern": "a)"}, "/pattern"), ({"type": "string", "pattern": "(a"}, "/pattern"),
    ({"type": "string", "pattern": r"(a)\1"}, "/pattern"), ({"type": "string", "pattern": r"\bx"}, "/pattern"),
    ({"type": "string", "pattern": "(?=a)b"}, "/pattern"), ({"type": "string", "pattern": "(((a{900}){900}){900})"}, "/pattern"),
    ({"type": "string", "pattern": "^[a-z]{20}$", "maxLength": 3}, "/pattern"), ({"type": "string", "pattern": 7}, "/pattern"),
    ({"type": "string", "pattern": "(.*a.{18})*b"}, "/pattern"), ({"type": "string", "pattern": "^\\x01$"}, "/pattern"),
    ({"type": "string", "format": "hostname"}, "/format"), ({"type": "string", "format": 3}, "/format"),
    ({"type": "string", "minLength": 5, "maxLength": 4}, "/maxLength"), ({"type": "string", "minLength": -1}, "/minLength"),
    ({"type": "string", "maxLength": 1.5}, "/maxLength"), ({"type": "string", "maxLength": "4"}, "/maxLength"),
    ({"type": "integer", "minimum": 4, "maximum": 3}, "/minimum"), ({"type": "integer", "minimum": "0"}, "/minimum"),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "/exclusiveMinimum"),
    ({"type": "integer", "multipleOf": 5}, "/multipleOf"), ({"type": "number", "minimum": 1e300}, "/minimum"),
    ({"type": "integer", "exclusiveMinimum": True}, "/exclusiveMinimum"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "/maxItems"), ({"type": "array", "uniqueItems": True}, "/uniqueItems"),
    ({"type": "array", "prefixItems": [{}]}, "/prefixItems"), ({"type": "array", "contains": {}}, "/contains"),
    ({"type": "array", "items": [{}]}, "/items"), ({"type": "array", "items": 7}, "/items"),
    ({"type": "array", "items": False, "minItems": 1}, "/minItems"),
    ({"type": "object", "patternProperties": {}}, "/patternProperties"), ({"type": "object", "minProperties": 1}, "/minProperties"),
    ({"type": "object", "propertyNames": {}}, "/propertyNames"), ({"type": "object", "properties": []}, "/properties"),
    ({"type": "object", "properties": {"a": 5}}, "/properties/a"), ({"type": "object", "properties": {"a": None}}, "/properties/a"),
    ({"type": "object", "required": "a"}, "/required"), ({"type": "object", "required": [1]}, "/required/0"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "/required/0"),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "/properties/a"),
    ({"type": "object", "dependentRequired": {}}, "/dependentRequired"), ({"not": {}}, "/not"), ({"if": {}}, "/if"),
    ({"type": "object", "unevaluatedProperties": False}, "/unevaluatedProperties"), ({"frobnicate": 1}, "/frobnicate"),
    ({"anyOf": []}, "/anyOf"), ({"anyOf": {}}, "/anyOf"), ({"anyOf": [{}], "type": "object"}, "/type"),
    ({"anyOf": [{"type": "string"}] * 40}, "/anyOf"), ({"anyOf": [3]}, "/anyOf/0"), ({"anyOf": [{"type": "x"}]}, "/anyOf/0/type"),
    ({"oneOf": [{"type": "string"}, {"type": ["string", "null"]}]}, "/oneOf"),
    ({"oneOf": [{"type": "object", "properties": {"a": {"const": 1}}}, {"type": "object"}]}, "/oneOf"),
    ({"allOf": [{"type": "object"}, {"type": "object"}]}, "/allOf"), ({"allOf": []}, "/allOf"),
    ({"$ref": "#/$defs/none"}, "/$ref"), ({"$ref": "http://example.org/s"}, "/$ref"), ({"$ref": "#"}, "/$ref"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "/$ref"),
    ({"$ref": "#/$defs/a", "type": "object", "$defs": {"a": {}}}, "/type"), ({"$ref": 7}, "/$ref"),
    ({"$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}, "$ref": "#/$defs/n"},
     "/$defs/n"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, ""),
    ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, ""),
    ({"enum": []}, "/enum"), ({"enum": "a"}, "/enum"), ({"type": "integer", "enum": ["a"]}, "/enum"),
    ({"enum": ["a"], "minLength": 1}, "/enum"), ({"enum": [1], "const": 1}, "/enum"), ({"type": "string", "const": 5}, "/const"),
    ({"nullable": "yes", "type": "string"}, "/nullable"), ({"type": "string", "minLength": None}, "/minLength"),
    ({"type": "string", "contentEncoding": "base64"}, "/contentEncoding"), ({"$dynamicRef": "#x"}, "/$dynamicRef"),
    ({"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(300)}}, ""),
]


def refused(n, seed):
    """n refused schemas with their pointers: those above, alone and inside others."""
    r = random.Random(seed)
    for i in range(n):
        schema, pointer = REFUSED[i % len(REFUSED)]
        if i >= len(REFUSED) and "$ref" not in re.sub(r'"\$defs"', "", str(schema)):
            for _ in range(r.randint(1, 3)):
                kind = r.randrange(3)
                if kind == 0:
                    schema, pointer = {"type": "object", "properties": {"ok": {"type": "null"}, "p": schema}}, "/properties/p" + pointer
                elif kind == 1:
                    schema, pointer = {"type": "array", "items": schema}, "/items" + pointer
                else:
                    schema, pointer = {"anyOf": [{"type": "null"}, schema]}, "/anyOf/1" + pointer
        yield schema, pointer
