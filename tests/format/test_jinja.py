"""Our Jinja against Python's: written snippets, then generated ones. What jinja2 renders, ours renders to the same
bytes or refuses as unsupported; what jinja2 refuses, ours refuses."""
import random
import sys
import warnings

try:
    from jinja_oracle import DATA, Ours, environment, snippets
except ImportError as missing:
    print(f"SKIP {missing}")
    sys.exit(77)

warnings.simplefilter("ignore")  # of the code that jinja2 makes of odd expressions
env = environment()
ours = Ours()
counts = {"same": 0, "refused by both": 0, "unsupported": 0}
unsupported = []


def oracle(template):
    try:
        return env.from_string(template).render(DATA)
    except Exception as e:  # every failure counts as one
        return e


def check(template):
    want = oracle(template)
    got = ours.ask({"template": template, "data": DATA})
    if isinstance(want, str) and (" at 0x" in want or "<function " in want or "<built-in" in want):
        return  # the address of a Python object
    if isinstance(want, Exception):
        if "error" not in got:
            sys.exit(f"{template!r}\n  jinja2 fails: {want!r}\n  ours renders {got['text']!r}")
        counts["refused by both"] += 1
    elif "error" in got:
        # jinja2 folds constants when it compiles, and lets a slice of what has none pass there.
        folded = "slice" in got["error"] and "[" in template
        if got["status"] != "unsupported" and not folded:
            sys.exit(f"{template!r}\n  jinja2 renders {want!r}\n  ours fails ({got['status']}): {got['error']}")
        counts["unsupported"] += 1
        unsupported.append((template, got["error"]))
    elif got["text"] != want:
        sys.exit(f"{template!r}\n  jinja2 renders {want!r}\n  ours          {got['text']!r}")
    else:
        counts["same"] += 1
        at = 0
        letters = set("αβγδΑΒΓΔΣσςι")
        for char in got["text"] if template.isascii() else "":  # what came from the data is never trusted
            n = len(char.encode())
            if char in letters and "1" in got["trusted"][at:at + n]:
                sys.exit(f"{template!r}\n  {char!r} of the data is trusted")
            at += n


# ---- generated expressions: the values of DATA under every operator, filter, test and method ----
rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
NAMES = list(DATA) + ["missing"]
LITERALS = """
1 ; 0 ; -2 ; 2.5 ; 'a' ; 'β' ; '' ; true ; none ; [1, 'b'] ; (1, 2) ; {'a': 1} ; '%s' ; ' x ' ; 'aXb'
""".replace("\n", " ").strip().split(" ; ")
FILTERS = """
abs ; capitalize ; count ; default('q') ; default('q', true) ; first ; float ; indent ; int ; items|list ; join
; join('-') ; last ; length ; list ; lower ; max ; min ; reject|list ; replace('a', 'b') ; reverse|list ; round
; select|list ; select('string')|list ; sort ; string ; sum ; title ; tojson ; tojson(indent=1) ; trim ;
unique|list ; upper ; map('string')|list ; map('upper')|join ; map(attribute='name')|list ; dictsort ;
selectattr('age')|list ; rejectattr('age', 'odd')|list ; sort(reverse=true) ; round(1) ; int(9) ; format(1) ;
map(attribute=0)|list ; join(', ', attribute='name') ; indent(2, true, true) ; trim('x ') ; map('length')|list ;
safe ; escape ; safe|upper
""".replace("\n", " ").strip().split(" ; ")
TESTS = """
defined ; none ; string ; number ; integer ; float ; boolean ; mapping ; iterable ; sequence ; true ; false ;
odd ; even ; divisibleby(2) ; eq(1) ; in([1, 'a']) ; lower ; upper ; callable ; lt(3) ; ge('a')
""".replace("\n", " ").strip().split(" ; ")
METHODS = """
upper() ; lower() ; strip() ; split() ; split('a') ; rsplit('b', 1) ; startswith('α') ; endswith('') ; title() ;
replace('β', 'Q') ; find('α') ; items() ; keys()|list ; values()|list ; get('a') ; get('β', 3) ; join(['x',
'y']) ; capitalize() ; splitlines() ; lstrip('α') ; rstrip() ; count('a') ; isalpha() ; isupper() ; rfind('γ') ;
name ; real ; zz ; get ; upper ; items ; count ; append ; removeprefix('α') ; index('β')
""".replace("\n", " ").strip().split(" ; ")
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]


def expression(depth):
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(NAMES) if rng.random() < 0.6 else rng.choice(LITERALS)
    kind = rng.randrange(12)
    if kind < 3:
        return f"({expression(depth - 1)} {rng.choice(BINARY)} {expression(depth - 1)})"
    if kind < 6:
        return f"({expression(depth - 1)})|{rng.choice(FILTERS)}"
    if kind < 8:
        return f"({expression(depth - 1)}).{rng.choice(METHODS)}"
    if kind == 8:
        return f"({expression(depth - 1)} is {rng.choice(['', 'not '])}{rng.choice(TESTS)})"
    if kind == 9:
        index = rng.choice([expression(depth - 1), "1:", "::-1", ":-1", "-2::2", "0", "-1"])
        return f"({expression(depth - 1)})[{index}]"
    if kind == 10:
        return f"({expression(depth - 1)} if {expression(depth - 1)} else {expression(depth - 1)})"
    return rng.choice(["-", "not ", "+"]) + expression(depth - 1)


def statement(depth):
    kind = rng.randrange(9) if depth else rng.randrange(3)
    name = rng.choice(["a", "b", "n", "s"])
    if kind == 0:
        return rng.choice([" x\n", "\n", "  ", "- y", "\n\n z "])
    if kind < 3:
        return "{{ " + rng.choice(["a", "b", "n", "s", "loop.index", "q.v", "m(b)", "m(a=1)"]) + " }}"
    sign, sign2 = rng.choice(["", "-", "+"]), rng.choice(["", "-"])
    body = "".join(statement(depth - 1) for _ in range(rng.randrange(1, 4)))
    if kind == 3:
        return f"{{%{sign} set {name} = {rng.choice(['a', 'n', '1', 's ~ b', 'loop.index'])} {sign2}%}}"
    if kind == 4:
        other = f"{{% else %}}{statement(depth - 1)}" if rng.random() < 0.5 else ""
        return f"{{%{sign} if {rng.choice(['a', 'b', 'n == 1', 't', 'f'])} {sign2}%}}{body}{other}{{% endif %}}"
    if kind == 5:
        extra = rng.choice(["", " if " + rng.choice(["n", "a", "loop"])])
        other = "{% else %}none" if rng.random() < 0.3 else ""
        jump = rng.choice(["", "", "{% break %}", "{% if a %}{% continue %}{% endif %}"])
        over = rng.choice(["xs", "words", "none_list", "nest"])
        return f"{{%{sign} for {name} in {over}{extra} {sign2}%}}{body}{jump}{other}{{% endfor %}}"
    if kind == 6:
        return f"{{% set {name} %}}{body}{{%{sign} endset %}}"
    if kind == 7:
        return f"{{% macro m(a, b='B') {sign2}%}}{body if depth < 2 else '{{ a }}{{ b }}{{ n }}'}{{% endmacro %}}"
    return f"{{% with {name} = n %}}{body}{{% endwith %}}"


for snippet in snippets():
    check(snippet)
total = int(sys.argv[2]) if len(sys.argv) > 2 else 6000
for i in range(total):
    check("{{ " + expression(rng.randrange(1, 4)) + " }}")
for i in range(total // 3):
    start = "{% set q = namespace(v=1) %}{% macro m(a='A', b='B') %}{{ a }}{{ b }}{{ n }}{% endmacro %}"
    check(start + "".join(statement(3) for _ in range(rng.randrange(1, 5))))
print(", ".join(f"{n} {what}" for what, n in counts.items()))
if "-v" in sys.argv:
    for template, error in unsupported[:400]:
        print(error, "|", template)
if counts["unsupported"] * 10 > counts["same"]:
    sys.exit("too much is unsupported")
