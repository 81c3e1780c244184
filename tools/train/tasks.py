"""Generators of the tasks that the models are trained on and examined in.

Every generator takes a World (its random numbers and word lists) and returns an item:
  messages, tools    in the API's form; the last message is the assistant's answer
  thinking           whether the answer has reasoning
  family             the name under which examinations count it
An item of training may ask several questions in one chat; an item of an examination is an item whose last answer
is the one that counts. The seeds of training and examination differ, the generators do not.
"""

import json
import random
import string

CITIES = """Accra Adelaide Amman Ankara Antwerp Athens Auckland Baku Bamako Bangkok Basel Belfast Bergen Berlin Bogota
Boston Bremen Brno Brussels Bucharest Budapest Cairo Calgary Cardiff Casablanca Chicago Cologne Dakar Dallas Delhi
Denver Dublin Durban Florence Galway Geneva Genoa Ghent Glasgow Graz Hamburg Hanoi Havana Helsinki Hobart Houston
Istanbul Jakarta Kigali Kobe Kyoto Lagos Lahore Lima Lisbon Ljubljana London Lyon Madrid Malaga Manila Marseille
Melbourne Miami Milan Minsk Montreal Mumbai Munich Nagoya Nairobi Nantes Naples Oporto Osaka Oslo Ottawa Oulu Palermo
Paris Perth Porto Prague Quito Riga Rome Rotterdam Seoul Seville Sofia Stockholm Sydney Taipei Tallinn Tampere Tbilisi
Tokyo Toronto Trieste Tromso Tunis Turin Turku Utrecht Valencia Vancouver Venice Vienna Vilnius Warsaw Wellington York
Zagreb Zurich""".split()
COLORS = """red blue green yellow black white orange purple brown grey pink violet amber silver golden crimson teal
scarlet""".split()
MONTHS = "January February March April May June July August September October November December".split()
SYLLABLES = [
    c + v
    for c in "b d f g k l m n p r s t v z br dr gr kr st tr th sh ch".split()
    for v in "a e i o u ai ei ou".split()
]
ATTRIBUTES = {
    "code": "code",
    "access code": "code",
    "password": "word",
    "serial number": "code",
    "color": "color",
    "owner": "name",
    "keeper": "name",
    "price": "price",
    "city": "city",
    "key": "code",
    "room number": "number",
    "birthday": "date",
    "secret word": "word",
    "phone extension": "number",
    "opening time": "time",
    "magic number": "number",
    "captain": "name",
    "label": "word",
    "home town": "city",
    "email": "email",
    "weight": "weight",
    "favorite animal": "noun",
    "pin": "number",
}
UNICODE = [
    (0x3B1, 0x3C9),
    (0x430, 0x44F),
    (0x4E00, 0x4FFF),
    (0x3041, 0x3096),
    (0xE0, 0xFE),
    (0x1F600, 0x1F640),
    (0x5D0, 0x5EA),
]


class World:
    def __init__(self, corpus, seed):
        self.rng = random.Random(seed)
        self.c = corpus

    # ---- values
    def pick(self, seq):
        return seq[int(self.rng.random() * len(seq))]

    def chance(self, p):
        return self.rng.random() < p

    def digits(self, n):
        return self.pick("123456789") + "".join(self.pick("0123456789") for _ in range(n - 1))

    def made_word(self):
        return "".join(self.pick(SYLLABLES) for _ in range(self.rng.randint(2, 3)))

    def noun(self):
        return self.pick(self.c["nouns"])

    def adjective(self):
        return self.pick(self.c["adjectives"])

    def word(self):
        r = self.rng.random()
        return (
            self.noun()
            if r < 0.4
            else self.adjective() if r < 0.6 else self.pick(self.c["verbs"]) if r < 0.75 else self.made_word()
        )

    def name(self):
        r = self.rng.random()
        first = self.pick(self.c["names"])
        return (
            first
            if r < 0.5
            else (
                f"{first} {self.pick(self.c['names'])}" if r < 0.75 else f"{first} {self.made_word().capitalize()}"
            )
        )

    def value(self, kind):
        r = self.rng
        if kind == "code":
            return self.pick(
                [
                    self.digits(5),
                    f"{self.pick(string.ascii_uppercase)}{self.pick(string.ascii_uppercase)}-{self.digits(4)}",
                    self.digits(4),
                    f"{self.word()}-{self.digits(2)}",
                    f"{self.pick(string.ascii_uppercase)}{self.digits(3)}",
                ]
            )
        if kind == "number":
            return self.digits(r.randint(1, 5))
        if kind == "word":
            return self.word()
        if kind == "noun":
            return self.noun()
        if kind == "color":
            return self.pick(COLORS)
        if kind == "name":
            return self.name()
        if kind == "city":
            return self.pick(CITIES)
        if kind == "price":
            return f"${self.digits(r.randint(1, 3))}.{self.pick('0123456789')}{self.pick('05')}"
        if kind == "date":
            return f"{r.randint(1, 28)} {self.pick(MONTHS)} {r.randint(1900, 2030)}"
        if kind == "time":
            return f"{r.randint(0, 23):02d}:{self.pick(['00', '15', '30', '45', '10', '50'])}"
        if kind == "email":
            name = f"{self.word()}{self.pick(['', '.', '_'])}{self.made_word()}"
            return f"{name}@{self.word()}.{self.pick(['com', 'org', 'net', 'example'])}"
        if kind == "weight":
            return f"{self.digits(r.randint(1, 3))} {self.pick(['kg', 'g', 'pounds'])}"
        raise KeyError(kind)

    def entity(self):
        r = self.rng.random()
        if r < 0.6:
            return f"the {self.adjective()} {self.noun()}"
        if r < 0.75:
            return f"the {self.noun()}"
        return self.name() if r < 0.9 else self.made_word().capitalize()

    def fact(self):
        attribute = self.pick(list(ATTRIBUTES))
        return self.entity(), attribute, self.value(ATTRIBUTES[attribute])

    def sample(self, seq, n):
        return self.rng.sample(seq, n)

    def sentence(self):
        """A sentence that means little."""
        n, a, v = self.noun, self.adjective, lambda: self.pick(self.c["verbs"])
        name = self.pick(self.c["names"])
        return self.pick(
            [
                lambda: f"The {a()} {n()} was near the {n()}.",
                lambda: f"{name} wanted to {v()} the {a()} {n()}.",
                lambda: f"Every {n()} has a {n()}.",
                lambda: f"{name} and {self.pick(self.c['names'])} talked about the {n()}.",
                lambda: f"There are {self.rng.randint(2, 99)} {a()} things in the {n()}.",
                lambda: f"In {self.pick(CITIES)} the {n()} is {a()}.",
                lambda: f"It is {a()} to {v()} a {n()} in {self.pick(MONTHS)}.",
                lambda: f"No {n()} can {v()} without a {a()} {n()}.",
                lambda: f"{name} went to {self.pick(CITIES)} to see a {a()} {n()}.",
                lambda: f"A {n()} may {v()}, but a {n()} may not.",
            ]
        )()

    def gloss(self):
        word, pos, definition = self.pick(self.c["glosses"])
        return word, pos, definition

    def filler(self, style):
        if style == 0:
            return self.sentence()
        if style == 1:
            return self.pick(self.c["verses"])
        if style == 2:
            word, pos, definition = self.gloss()
            return f"{word} ({pos}): {definition}."
        if style == 3:
            return self.pick(self.c["devil"]) if self.chance(0.5) else self.pick(self.c["state"])
        target = f"{self.made_word()}_{self.noun()}"
        return f"{target} = {self.pick(['get', 'set', 'load', 'find'])}_{self.noun()}({self.rng.randint(0, 99)})"

    def passage(self, chars):
        """About this many characters of filler, as a list of sentences."""
        style, out, n = self.rng.randrange(5), [], 0
        while n < chars:
            if self.chance(0.08):
                style = self.rng.randrange(5)
            s = self.filler(style)
            out.append(s)
            n += len(s) + 1
        return out


def cap(s):
    return s[:1].upper() + s[1:]


def state(w, fact):
    e, a, v = fact
    own = e + ("'" if e.endswith("s") else "'s")
    return w.pick(
        [
            f"The {a} of {e} is {v}.",
            f"{cap(own)} {a} is {v}.",
            f"Remember: the {a} of {e} is {v}.",
            f"The {a} of {e} is {v}.",
        ]
    )


def ask(w, e, a):
    """(question, whether the answer is the value alone)"""
    own = e + ("'" if e.endswith("s") else "'s")
    q = w.pick(
        [
            f"What is the {a} of {e}?",
            f"What is {own} {a}?",
            f"Tell me the {a} of {e}.",
            f"According to the text, what is the {a} of {e}?",
        ]
    )
    if w.chance(0.65):
        return (
            q
            + w.pick(
                [
                    " Reply with the value only.",
                    " Answer with only the value.",
                    " Only the value, please.",
                    " Give just the value.",
                ]
            ),
            True,
        )
    return q, False


def reply(e, a, v, bare):
    return v if bare else f"The {a} of {e} is {v}."


def user(text):
    return {"role": "user", "content": text}


def assistant(text, why="", calls=None):
    m = {"role": "assistant", "content": text, "reasoning_content": why}
    if calls:
        m["tool_calls"] = calls
    return m


def item(family, messages, thinking=False, tools=None):
    return {"family": family, "messages": messages, "tools": tools, "thinking": thinking}


def distinct_facts(w, n, related=0.4):
    """n facts about n different (entity, attribute) pairs, some of which share one half with another."""
    facts, seen = [], set()
    while len(facts) < n:
        e, a, v = w.fact()
        if facts and w.chance(related):
            e0, a0, _ = w.pick(facts)
            if w.chance(0.5):
                e = e0
            else:
                a = a0
            v = w.value(ATTRIBUTES[a])
        if (e.lower(), a) not in seen:
            seen.add((e.lower(), a))
            facts.append((e, a, v))
    return facts


UNKNOWN = "The text does not say."


def needle(w, chars, questions=1, exam=False):
    """Facts in a long text, and questions about them."""
    facts = distinct_facts(w, max(questions, w.rng.randint(1, 6)))
    body = w.passage(chars)
    for f in facts:
        body.insert(w.rng.randint(0, len(body)), state(w, f))
    join = w.pick([" ", "\n", " ", "\n\n"])
    text = join.join(body)
    thinking = not exam and w.chance(0.25)
    head, messages = w.pick(["Read this text.", "Here is a text.", "Text:", "Below is a document."]), []
    chosen = w.sample(facts, questions)
    for i, (e, a, v) in enumerate(chosen):
        q, bare = ask(w, e, a)
        answer, why = reply(e, a, v, bare), f"The text says that the {a} of {e} is {v}."
        if not exam and w.chance(0.08):
            e2, a2, _ = w.fact()
            if all(a2 != f[1] or e2.lower() != f[0].lower() for f in facts):
                q, _ = ask(w, e2, a2)
                answer, why = UNKNOWN, f"The text does not give the {a2} of {e2}."
        if i == 0:
            q = f"{q}\n\n{text}" if w.chance(0.15) else f"{head}\n\n{text}\n\n{q}"
        messages += [user(q), assistant(answer, why)]
    return item("needle", messages, thinking)


def recall(w, exam=False):
    """Facts told in earlier turns, asked for in a later one."""
    facts = distinct_facts(w, w.rng.randint(1, 4))
    personal = w.chance(0.5)
    if personal:
        facts = [("my", a, v) for _, a, v in facts]
        facts = list({a: (e, a, v) for e, a, v in facts}.values())
    say = lambda f: f"My {f[1]} is {f[2]}." if personal else state(w, f)
    messages, thinking = [], not exam and w.chance(0.25)
    if w.chance(0.2):
        messages.append(
            {
                "role": "system",
                "content": w.pick(
                    ["You are a helpful assistant.", "You are terse.", "Answer briefly.", "You remember facts."]
                ),
            }
        )
    if w.chance(0.6):
        messages += [
            user(" ".join(say(f) for f in facts)),
            assistant(w.pick(["Noted.", "Understood.", "I will remember that.", "OK."])),
        ]
    else:
        for f in facts:
            messages += [user(say(f)), assistant("Noted.")]
    for _ in range(w.pick([0, 0, 0, 1, 2])):
        messages += small_talk(w)["messages"][-2:]
    for e, a, v in w.sample(facts, 1 if exam else w.rng.randint(1, len(facts))):
        if personal:
            q = w.pick([f"What is my {a}?", f"Do you remember my {a}?", f"Tell me my {a}."])
            bare = w.chance(0.5)
            q += " Reply with the value only." if bare else ""
            answer = v if bare else f"Your {a} is {v}."
            why = f"The user said that their {a} is {v}."
        else:
            q, bare = ask(w, e, a)
            q = q.replace("According to the text, what", "What")
            answer, why = reply(e, a, v, bare), f"The user said that the {a} of {e} is {v}."
        messages += [user(q), assistant(answer, why)]
    if not exam and w.chance(0.15):
        asked = {f[1] for f in facts}
        a = w.pick([a for a in ATTRIBUTES if a not in asked])
        q = f"What is my {a}?" if personal else f"What is the {a} of {facts[0][0]}?"
        messages += [user(q), assistant("You have not told me that.", "That was not said.")]
    return item("recall", messages, thinking)


TALK = [
    (["Hello!", "Hi", "Hey there", "Good morning", "Hello", "Hi there!"], "Hello! How can I help you?"),
    (["How are you?", "How are you today?"], "I am a small model, and I am ready. What can I do for you?"),
    (
        ["Who are you?", "What are you?", "What is your name?"],
        "I am fold, a small model that finds, copies and edits text and calls tools.",
    ),
    (
        ["What can you do?", "Help", "What are you good at?"],
        "I can find facts in a text, copy and edit text, extract JSON, call tools and do small sums.",
    ),
    (["Thanks!", "Thank you.", "Thank you very much!"], "You are welcome."),
    (["Goodbye", "Bye!", "See you later."], "Goodbye!"),
    (["Tell me a joke.", "Say something funny."], "I know no jokes, but I can copy yours without a mistake."),
    (
        [
            "What is the meaning of life?",
            "Who will win the election?",
            "What will the weather be tomorrow?",
            "What is the news today?",
        ],
        "I do not know that.",
    ),
    (
        [
            "Who is the king of France?",
            "How do I cook rice?",
            "Write me a novel.",
            "What is the capital of Atlantis?",
        ],
        "I do not know that.",
    ),
]


def small_talk(w, exam=False):
    messages = []
    for _ in range(w.pick([1, 1, 2, 3])):
        q, a = w.pick(TALK)
        messages += [user(w.pick(q)), assistant(a, "The user is chatting.")]
    return item("talk", messages, w.chance(0.3))


# ---- copying and editing
def unicode_word(w):
    lo, hi = w.pick(UNICODE)
    return "".join(chr(w.rng.randint(lo, hi)) for _ in range(w.rng.randint(1, 5)))


def code_line(w):
    a, b = w.made_word(), w.noun()
    return w.pick(
        [
            f"int {a} = {w.rng.randint(0, 999)};",
            f"if ({a} > {w.rng.randint(0, 99)}) return {b};",
            f"def {a}_{b}(x, y):",
            f"    {b}.{a}({w.rng.randint(0, 9)});",
            f"for {a} in range({w.rng.randint(1, 50)}):",
            f'print("{b} {a}")',
            f"x[{w.rng.randint(0, 9)}] += {a} * {b};",
            f"#include <{b}.h>",
            f"SELECT {a} FROM {b} WHERE id = {w.digits(3)};",
        ]
    )


def copy_text(w, size):
    r = w.rng.random()
    if r < 0.3:
        return " ".join(w.sentence() for _ in range(size))
    if r < 0.45:
        return "\n".join(code_line(w) for _ in range(size * 2))
    if r < 0.55:
        return " ".join(unicode_word(w) if w.chance(0.5) else w.word() for _ in range(size * 4))
    if r < 0.7:
        return " ".join(w.word() for _ in range(size * 7))
    if r < 0.8:
        return " ".join(w.digits(w.rng.randint(1, 5)) for _ in range(size * 4))
    if r < 0.9:
        return w.pick(w.c["verses"])[: 120 * size].rsplit(" ", 1)[0]
    return f"{w.name()}, {w.value('email')}, {w.value('date')}, {w.value('price')}"


def copy(w, exam=False):
    text = copy_text(w, w.rng.randint(1, 5))
    text = "\n".join(line for line in text.split("\n")).strip()
    ask_ = w.pick(
        [
            "Repeat this text exactly:",
            "Copy the following text exactly:",
            "Write this text again, unchanged:",
            "Echo:",
            "Repeat after me:",
        ]
    )
    return item(
        "copy",
        [user(f"{ask_}\n\n{text}"), assistant(text, "Copy the text unchanged.")],
        not exam and w.chance(0.15),
    )


def edit(w, exam=False):
    kind = w.rng.randrange(9)
    items = []
    while len(items) < 3 + w.rng.randrange(6):
        x = w.word() if w.chance(0.6) else w.value(w.pick(["name", "city", "color", "number", "code"]))
        if x not in items:
            items.append(x)
    lines = "\n".join(items)
    pos = w.rng.randrange(len(items))
    why = "Apply the change and leave the rest."
    if kind == 0:
        words = [w.word() for _ in range(w.rng.randint(6, 25))]
        old, new = w.pick(words), w.word()
        q = f"Replace every \"{old}\" with \"{new}\" in this text:\n\n{' '.join(words)}"
        a = " ".join(new if x == old else x for x in words)
    elif kind == 1:
        text = w.sentence() + " " + w.sentence()
        plain = [x for x in text.split() if x.isalpha() and len(x) > 2 and text.split().count(x) == 1] or ["The"]
        old, new = w.pick(plain), w.word()
        q = f'In this text, change the word "{old}" to "{new}":\n\n{text}'
        a = " ".join(new if x == old else x for x in text.split())
    elif kind == 2:
        q, a = f'Remove "{items[pos]}" from this list:\n\n{lines}', "\n".join(items[:pos] + items[pos + 1 :])
    elif kind == 3:
        new = w.word()
        q, a = f'Add "{new}" to the end of this list:\n\n{lines}', "\n".join(items + [new])
    elif kind == 4:
        q, a = f"Write this list in reverse order:\n\n{lines}", "\n".join(reversed(items))
    elif kind == 5:
        q, a = f"Number the lines of this list:\n\n{lines}", "\n".join(
            f"{i + 1}. {x}" for i, x in enumerate(items)
        )
    elif kind == 6:
        q, a = f"Write this list on one line, with commas:\n\n{lines}", ", ".join(items)
    elif kind == 7:
        q, a = f"Write each item on its own line with a dash: {', '.join(items)}", "\n".join(
            f"- {x}" for x in items
        )
    else:
        old, new, text = "x" + w.digits(1), w.made_word(), [code_line(w) for _ in range(w.rng.randint(1, 3))]
        body = [f"{old} = {w.digits(2)}", *text, f"print({old})"]
        q = f"Rename the variable {old} to {new} in this code:\n\n" + "\n".join(body)
        a = "\n".join(x.replace(old, new) for x in body)
        why = f"Write {new} where the code has {old}."
    return item("edit", [user(q), assistant(a, why)], not exam and w.chance(0.2))


def listing(w, exam=False):
    facts = distinct_facts(w, w.rng.randint(2, 6), 0.2)
    a0 = w.pick(list(ATTRIBUTES))
    for i in w.sample(range(len(facts)), w.rng.randint(1, len(facts))):
        facts[i] = (facts[i][0], a0, w.value(ATTRIBUTES[a0]))
    body = [state(w, f) for f in facts] + w.passage(w.rng.randint(0, 300))
    order = list(range(len(body)))
    w.rng.shuffle(order)
    found = [facts[i][2] for i in order if i < len(facts) and facts[i][1] == a0]
    text = " ".join(body[i] for i in order)
    q = f"{text}\n\nList every {a0} in the text, one on each line, in order."
    return item(
        "listing",
        [user(q), assistant("\n".join(found), f"The text has {len(found)}.")],
        not exam and w.chance(0.2),
    )


def limit(w, exam=False):
    kind = w.rng.randrange(4)
    if kind == 0:
        words = w.sentence().split() + w.sentence().split()
        n = w.rng.randint(1, min(8, len(words)))
        q, a = f"Repeat only the first {n} words of this text: {' '.join(words)}", " ".join(words[:n])
        why = f"The first {n} words."
    elif kind == 1:
        e, a0, v = w.fact()
        n = w.rng.randint(3, 6)
        q, a, why = (
            f"{state(w, (e, a0, v))} {w.sentence()} What is the {a0} of {e}? Reply with at most {n} words.",
            v,
            f"At most {n} words.",
        )
    elif kind == 2:
        word, pos, definition = w.gloss()
        n = w.rng.randint(2, 6)
        a = " ".join(definition.split()[:n])
        q, why = f"{cap(word)}: {definition}. Say what it is in at most {n} words.", f"At most {n} words."
    else:
        x = w.word()
        n = w.rng.randint(2, 9)
        q, a, why = f'Write the word "{x}" {n} times, then stop.', " ".join([x] * n), f"{n} times."
    return item("limit", [user(q), assistant(a, why)], not exam and w.chance(0.2))


def glossary(w, exam=False):
    entries = {}
    while len(entries) < w.rng.randint(2, 12):
        word, pos, definition = w.gloss()
        entries[word] = definition
    text = "\n".join(f"{k}: {v}" for k, v in entries.items())
    messages, thinking = [], not exam and w.chance(0.2)
    for i, word in enumerate(w.sample(list(entries), w.rng.randint(1, 2))):
        if not exam and w.chance(0.1):
            word = w.made_word()
        a = entries.get(word)
        q = w.pick(
            [
                f'What does "{word}" mean?',
                f'What is the meaning of "{word}" here?',
                f'Define "{word}" as the glossary does.',
            ]
        )
        messages += [
            user(f"Glossary:\n{text}\n\n{q}" if i == 0 else q),
            assistant(a or "The glossary does not have it.", f"Look for {word}."),
        ]
    return item("glossary", messages, thinking)


# ---- JSON
FIELDS = {
    "name": "name",
    "age": "age",
    "city": "city",
    "email": "email",
    "color": "color",
    "price": "amount",
    "quantity": "age",
    "date": "date",
    "product": "noun",
    "code": "code",
    "phone": "phone",
    "member": "flag",
    "company": "made",
    "room": "age",
    "job": "noun",
    "tags": "list",
    "id": "phone",
    "active": "flag",
}


def field_value(w, kind):
    if kind == "age":
        return w.rng.randint(1, 99)
    if kind == "amount":
        return w.rng.randint(1, 999) if w.chance(0.5) else float(f"{w.rng.randint(1, 99)}.{w.rng.randint(1, 9)}")
    if kind == "phone":
        return w.digits(6)
    if kind == "flag":
        return w.chance(0.5)
    if kind == "made":
        return w.made_word().capitalize()
    if kind == "list":
        return [w.word() for _ in range(w.rng.randint(1, 3))]
    return w.value(kind)


def spoken(v):
    return ("yes" if v else "no") if isinstance(v, bool) else ", ".join(v) if isinstance(v, list) else str(v)


def extraction(w, exam=False):
    keys = w.sample(list(FIELDS), w.rng.randint(2, 6))
    record = {k: field_value(w, FIELDS[k]) for k in keys}
    noise = w.sample([k for k in FIELDS if k not in keys], w.rng.randint(0, 3))
    lines = [(k, record[k]) for k in keys] + [(k, field_value(w, FIELDS[k])) for k in noise]
    w.rng.shuffle(lines)
    style = w.rng.randrange(4)
    if style == 0:
        text = "\n".join(f"{cap(k)}: {spoken(v)}" for k, v in lines)
    elif style == 1:
        text = " ".join(f"The {k} is {spoken(v)}." for k, v in lines)
    elif style == 2:
        text = w.sentence() + " " + " ".join(f"The {k}: {spoken(v)}." for k, v in lines) + " " + w.sentence()
    else:
        text = "Record: " + "; ".join(f"{k} = {spoken(v)}" for k, v in lines)
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list"}
    how = w.pick(
        [
            f"with the keys {', '.join(keys)}",
            "with these keys: " + ", ".join(f"{k} ({kinds[type(record[k])]})" for k in keys),
        ]
    )
    q = w.pick(
        [
            f"Extract a JSON object {how} from this text. Reply with the JSON only.\n\n{text}",
            f"{text}\n\nReply with one JSON object {how} and nothing else.",
        ]
    )
    return item(
        "json",
        [user(q), assistant(json.dumps(record, ensure_ascii=False), f"The keys are {', '.join(keys)}.")],
        not exam and w.chance(0.2),
    )


# ---- tools
ACTIONS = """get set find send create delete update list search book cancel open close start stop convert translate play
schedule order check read write move copy add remove count track reserve""".split()
PARAMETERS = {
    "city": ("string", "city", "The city"),
    "name": ("string", "name", "The name of the person"),
    "date": ("string", "date", "The date"),
    "count": ("integer", "age", "How many"),
    "amount": ("number", "amount", "The amount"),
    "query": ("string", "phrase", "What to look for"),
    "color": ("string", "color", "The color"),
    "email": ("string", "email", "The email address"),
    "urgent": ("boolean", "flag", "Whether it is urgent"),
    "code": ("string", "code", "The code"),
    "time": ("string", "time", "The time of day"),
    "item": ("string", "noun", "The item"),
    "message": ("string", "phrase", "The text to send"),
    "level": ("integer", "age", "The level"),
    "tags": ("array", "list", "The tags"),
    "unit": ("string", "enum", "The unit"),
    "size": ("string", "enum", "The size"),
    "id": ("string", "phone", "The identifier"),
    "title": ("string", "phrase", "The title"),
    "limit": ("integer", "age", "The largest number of results"),
}
ENUMS = {"unit": ["celsius", "fahrenheit", "kelvin"], "size": ["small", "medium", "large"]}


def argument(w, key):
    kind = PARAMETERS[key][1]
    if kind == "enum":
        return w.pick(ENUMS[key])
    if kind == "phrase":
        return " ".join(w.word() for _ in range(w.rng.randint(1, 4)))
    return field_value(w, kind)


def schema(name, text, /, **props):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {
                "type": "object",
                "properties": {k: {"type": t, "description": d} for k, (t, d) in props.items()},
                "required": list(props),
            },
        },
    }


KNOWN = [
    (
        schema("get_weather", "Get the current weather in a city.", city=("string", "The city")),
        [
            "What is the weather in {city}?",
            "How is the weather in {city} today?",
            "Weather in {city}?",
            "Is it raining in {city}?",
        ],
    ),
    (
        schema("get_time", "Get the local time of a city.", city=("string", "The city")),
        ["What time is it in {city}?", "Tell me the time in {city}.", "Time in {city}?"],
    ),
    (
        schema(
            "send_email",
            "Send an email.",
            to=("string", "The address"),
            subject=("string", "The subject"),
            body=("string", "The text"),
        ),
        [
            'Send an email to {to} with the subject "{subject}" and the text "{body}".',
            "Email {to}: subject {subject}, text {body}",
        ],
    ),
    (
        schema("search_web", "Search the web.", query=("string", "What to look for")),
        ["Search the web for {query}.", "Look up {query}", "Search for {query}."],
    ),
    (
        schema("set_alarm", "Set an alarm.", time=("string", "The time of day")),
        ["Set an alarm for {time}.", "Wake me at {time}."],
    ),
    (
        schema(
            "convert_currency",
            "Convert an amount of money.",
            amount=("number", "How much"),
            source=("string", "From"),
            target=("string", "To"),
        ),
        ["Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?"],
    ),
    (
        schema(
            "book_flight",
            "Book a flight.",
            origin=("string", "From"),
            destination=("string", "To"),
            date=("string", "The day"),
        ),
        [
            "Book a flight from {origin} to {destination} on {date}.",
            "I want to fly from {origin} to {destination} on {date}.",
        ],
    ),
    (
        schema("calculate", "Compute an expression.", expression=("string", "The expression")),
        ["What is {expression}?", "Calculate {expression}.", "Use the calculator for {expression}."],
    ),
    (
        schema("get_user", "Look up a user.", name=("string", "The name")),
        ["Look up the user {name}.", "Who is {name}?", "Find the user {name}."],
    ),
    (
        schema("read_file", "Read a file.", path=("string", "The path")),
        ["Read the file {path}.", "What is in {path}?", "Open {path}"],
    ),
    (
        schema("set_light", "Set a lamp.", room=("string", "The room"), brightness=("integer", "Percent")),
        ["Set the light in the {room} to {brightness} percent.", "Set the {room} lamp to {brightness}"],
    ),
]


def known_request(w, tool, forms):
    """The same for a tool that people ask for in their own words."""
    phrase = lambda: " ".join(w.word() for _ in range(w.rng.randint(1, 4)))
    make = {
        "city": lambda: w.pick(CITIES),
        "origin": lambda: w.pick(CITIES),
        "destination": lambda: w.pick(CITIES),
        "to": lambda: w.value("email"),
        "subject": phrase,
        "body": phrase,
        "query": phrase,
        "time": lambda: w.value("time"),
        "amount": lambda: w.rng.randint(1, 999),
        "source": lambda: w.pick(["USD", "EUR", "GBP"]),
        "target": lambda: w.pick(["JPY", "SEK", "CHF"]),
        "date": lambda: w.value("date"),
        "expression": lambda: f"{w.digits(w.rng.randint(1, 4))} {w.pick('+-*/')} {w.digits(w.rng.randint(1, 4))}",
        "name": w.name,
        "path": lambda: (
            f"{w.pick(['/tmp/', '', 'src/', '/etc/'])}{w.word()}.{w.pick(['txt', 'md', 'c', 'py', 'json'])}"
        ),
        "room": lambda: w.pick(["kitchen", "bedroom", "hall", "office"]) if w.chance(0.5) else w.noun(),
        "brightness": lambda: w.rng.randint(0, 100),
    }
    arguments = {k: make[k]() for k in tool["function"]["parameters"]["properties"]}
    return w.pick(forms).format(**arguments), {"name": tool["function"]["name"], "arguments": arguments}


def make_tool(w, used):
    while True:
        what = w.noun() if w.chance(0.8) else w.made_word()
        name = w.pick([f"{w.pick(ACTIONS)}_{what}", f"{w.pick(ACTIONS)}_{w.adjective()}_{what}", what])
        if name not in used:
            break
    used.add(name)
    keys = w.sample(list(PARAMETERS), w.pick([1, 1, 2, 2, 3, 4]))
    props = {}
    for k in keys:
        kind, _, text = PARAMETERS[k]
        props[k] = {"type": kind, "description": text}
        if k in ENUMS:
            props[k]["enum"] = ENUMS[k]
        if kind == "array":
            props[k]["items"] = {"type": "string"}
    required = [k for k in keys if w.chance(0.8)] or keys[:1]
    what = name.replace("_", " ")
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": w.pick([f"{cap(what)}.", f"Can {what}.", f"Use this to {what}."]),
            "parameters": {"type": "object", "properties": props, "required": required},
        },
    }


def request(w, tool, first):
    """(what the user says, the call) for one use of a tool."""
    f = tool["function"]
    props, required = f["parameters"]["properties"], f["parameters"]["required"]
    arguments = {k: argument(w, k) for k in props if k in required or w.chance(0.5)}
    said = list(arguments.items())
    what = f["name"].replace("_", " ")
    w.rng.shuffle(said)
    style = w.rng.randrange(4)
    quote = lambda v: f'"{v}"' if isinstance(v, str) and w.chance(0.25) else spoken(v)
    parts = [
        f"{k} {quote(v)}" if style < 2 else f"{k}: {quote(v)}" if style == 2 else f"the {k} is {quote(v)}"
        for k, v in said
    ]
    lead = (
        w.pick([f"please {what}", f"I want to {what}", f"use {f['name']}", f"{what}", f"can you {what}"])
        if first
        else w.pick([what, f"use {f['name']}"])
    )
    joined = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 and style != 2 else ", ".join(parts)
    return f"{lead} with {joined}" if style < 2 else f"{lead} ({joined})" if style == 2 else f"{lead}; {joined}", {
        "name": f["name"],
        "arguments": arguments,
    }


def tool_result(w, call):
    """(the tool's reply, a question-free answer from it)"""
    keys = w.sample(
        ["status", "result", "total", "place", "owner", "temperature", "reference"], w.rng.randint(1, 3)
    )
    kinds = {
        "status": lambda: w.pick(["ok", "done", "open", "pending"]),
        "result": w.word,
        "total": lambda: w.rng.randint(0, 999),
        "place": lambda: w.pick(CITIES),
        "owner": w.name,
        "temperature": lambda: w.rng.randint(-20, 40),
        "reference": lambda: w.value("code"),
    }
    result = {k: kinds[k]() for k in keys}
    return json.dumps(result, ensure_ascii=False), " ".join(f"The {k} is {v}." for k, v in result.items())


def tools(w, exam=False):
    """One or several calls; in training sometimes the results and the answer, a second round, or no call at all."""
    used = set()
    available = [make_tool(w, used) for _ in range(w.pick([1, 1, 2, 3, 4, 5]))]
    known = w.sample(KNOWN, w.rng.randint(1, 3)) if w.chance(0.35) else []
    if known:
        available = [t for t, _ in known] + available[: w.rng.randint(0, 2)]
        w.rng.shuffle(available)
    messages, thinking = [], not exam and w.chance(0.3)
    if w.chance(0.2):
        messages.append(
            {"role": "system", "content": w.pick(["You are a helpful assistant.", "Use the tools.", "Be brief."])}
        )
    if not exam and w.chance(0.08):
        q, a = w.pick(TALK)
        messages += [user(w.pick(q)), assistant(a, "No tool is needed.")]
        return item("tools", messages, thinking, available)
    rounds = 1 if exam or w.chance(0.8) else 2
    for _ in range(rounds):
        n = w.pick([1, 1, 1, 2, 2, 3])
        chosen = [w.pick(available) for _ in range(n)]
        said = [
            (
                known_request(w, t, next(f for k, f in known if k is t))
                if any(t is k for k, _ in known)
                else request(w, t, i == 0)
            )
            for i, t in enumerate(chosen)
        ]
        text = (
            said[0][0]
            if n == 1 and any(chosen[0] is k for k, _ in known)
            else cap(w.pick(["; ", ". Then ", ", and also ", ". Also "]).join(s for s, _ in said))
            + w.pick([".", "", "."])
        )
        calls = [c for _, c in said]
        messages += [
            user(text),
            assistant("", "I should call " + ", ".join(c["name"] for c in calls) + ".", calls),
        ]
        if exam or (rounds == 1 and w.chance(0.45)):
            break
        answers = []
        for c in calls:
            result, answer = tool_result(w, c)
            messages.append({"role": "tool", "content": result})
            answers.append(answer)
        messages.append(assistant("\n".join(answers), "The tools have answered."))
    return item("tools", messages, thinking, available)


# ---- arithmetic
def long_sum(a, b):
    out, carry, x, y = [], 0, str(a)[::-1], str(b)[::-1]
    for i in range(max(len(x), len(y))):
        p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
        s = p + q + carry
        out.append(f"{p} + {q} + {carry} = {s}")
        carry = s // 10
    return ", ".join(out) + f". So {a + b}."


def arithmetic(w, exam=False):
    r = w.rng
    kind, thinking = r.randrange(4), w.chance(0.75)
    if kind < 2:
        a, b = r.randint(0, 10 ** r.randint(1, 3)), r.randint(0, 10 ** r.randint(1, 3))
        q, answer, why = f"{a} + {b}", a + b, long_sum(a, b)
    elif kind == 2:
        a, b = sorted((r.randint(0, 99), r.randint(0, 99)), reverse=True)
        q, answer, why = (
            f"{a} - {b}",
            a - b,
            f"{a} - {b // 10 * 10} = {a - b // 10 * 10}, less {b % 10} is {a - b}.",
        )
    else:
        a, b = r.randint(2, 99), r.randint(2, 9)
        q, answer, why = (
            f"{a} * {b}",
            a * b,
            f"{a // 10 * 10} * {b} = {a // 10 * 10 * b}, {a % 10} * {b} = {a % 10 * b}. So {a * b}.",
        )
    text = w.pick([f"What is {q}?", f"Compute {q}.", f"{q} = ?", f"Work out {q}."])
    return item("arithmetic", [user(text), assistant(str(answer), why)], thinking)


SHORT = [
    (recall, 14),
    (copy, 12),
    (edit, 16),
    (listing, 5),
    (limit, 5),
    (glossary, 6),
    (extraction, 14),
    (tools, 24),
    (arithmetic, 6),
    (small_talk, 2),
]
_TOTAL = sum(weight for _, weight in SHORT)


def short(w):
    x = w.rng.random() * _TOTAL
    for f, weight in SHORT:
        x -= weight
        if x < 0:
            return f(w)
    return tools(w)


SYSTEMS = [
    "You are a helpful assistant.",
    "You are a careful assistant.",
    "Answer briefly.",
    "Be exact.",
    "You are terse.",
    "Help the user.",
]


def with_system(w, one):
    """The item, sometimes under a system message that changes nothing."""
    if one["messages"][0]["role"] != "system" and w.chance(0.15):
        one["messages"].insert(0, {"role": "system", "content": w.pick(SYSTEMS)})
    return one


def joined(w, count):
    """Several tasks without tools as the turns of one chat."""
    messages, thinking = [], False
    while count:
        one = short(w)
        if one["tools"] or one["messages"][0]["role"] == "system":
            continue
        messages += one["messages"]
        thinking, count = one["thinking"], count - 1
    return item("chat", messages, thinking)


def plain(w, chars):
    return (
        "\n".join(w.passage(chars))
        if w.chance(0.6)
        else "\n".join(w.pick(w.c["verses"]) for _ in range(chars // 130 + 1))
    )


def training(w, long_share):
    """One training item, or a string of plain text. long_share: how much of the time a long text is read."""
    r = w.rng.random()
    if r < 0.04:
        return plain(w, w.rng.randint(200, 3000))
    if r < 0.25:
        return with_system(w, needle(w, int(10 ** w.rng.uniform(1.7, 3.7)), w.rng.randint(1, 4)))
    if r < 0.32:
        return joined(w, w.rng.randint(2, 5))
    if r < 0.32 + long_share:
        return needle(w, int(10 ** w.rng.uniform(3.7, 4.78)), w.rng.randint(3, 8))
    return with_system(w, short(w))


EXAMS = {
    "needle-5k": lambda w: needle(w, 16700, exam=True),
    "tools": lambda w: tools(w, exam=True),
    "json": lambda w: extraction(w, exam=True),
    "copy-edit": lambda w: (copy if w.chance(0.5) else edit)(w, exam=True),
    "recall": lambda w: recall(w, exam=True),
    "needle-16k": lambda w: needle(w, 54500, exam=True),
}


def exam(corpus, family, n, seed):
    """n items that training never draws: its seeds are numbers, these are names."""
    out = []
    for i in range(n):
        one = EXAMS[family](World(corpus, f"exam-{seed}-{family}-{i}"))
        one["thinking"] = False
        out.append(one)
    return out
