"""The page at / in headless Chromium, over the scripted engine. With TF_SCREENSHOTS=FOLDER it leaves pictures there."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
import chromium
import harness

path = chromium.find()
browser = None


def start(server, settings=""):
    browser.open(server.url + "/")
    if settings:
        browser.run(settings)


def wish(**script):
    return "@@" + json.dumps(script) + "@@"


def enter(text):
    """As a person would: into the field, and Enter."""
    browser.run("document.getElementById('prompt').focus()")
    browser.type(text)
    browser.key("Enter", 13, "\r")


def ask(text):
    n = browser.run("document.querySelectorAll('.notes').length")
    enter(text)
    browser.wait(f"document.querySelectorAll('.notes').length > {n}")


def last(selector):
    return browser.run("(() => { const a = document.querySelectorAll('.assistant'); const e = a[a.length - 1]"
                       f".querySelector({json.dumps(selector)}); return e && e.textContent; }})()")


def test_headers(server):
    for p in ("/", "/page.css", "/page.js", "//"):
        status, headers, body = server.ask("GET", p)
        assert status == 200 and "default-src 'none'" in headers["content-security-policy"], headers
        assert headers["x-content-type-options"] == "nosniff" and len(body) > 1000
        assert server.ask("HEAD", p)[0] == 200
    assert server.ask("GET", "/page.html")[0] == 404 and server.ask("GET", "/../page.js")[0] == 404


def test_chat(server):
    start(server, "document.getElementById('thinking').value = 'off'")
    ask(wish(say="Hello \u00e9 \U0001f600.\n```c\nint main(void);\n```\nDone."))
    assert last(".text") == "Hello \u00e9 \U0001f600." and last("pre code") == "int main(void);\n"
    assert browser.run("document.getElementById('status').textContent") == "The reply is complete"
    assert browser.run("document.activeElement.id") == "prompt"
    ask("And again?")
    assert browser.run("messages.length") == 4 and "tokens in" in last(".notes")
    browser.run("document.getElementById('clear').click()")
    assert browser.run("messages.length + document.querySelectorAll('.message').length") == 0


def test_reasoning(server):
    start(server)
    ask(wish(say="Let me see.\n</think>\n\nIt is 4."))
    assert browser.run("document.querySelector('.thought').open") is False
    assert last(".thought .text") == "Let me see." and last(":scope > div .text") == "It is 4."
    assert "Thought" in last(".thought summary")


def test_script_in_replies(server):
    start(server, "document.getElementById('thinking').value = 'off'; window.broken = 0")
    evil = ("<img src=x onerror=broken=1><script>broken=1</script><svg onload=broken=1><a href='javascript:broken=1'>x</a>"
            "<iframe srcdoc='<script>parent.broken=1</script>'></iframe>")
    ask(wish(say=evil + "\n```html\n" + evil + "\n```\n"))
    assert last(".text") == evil and last("pre code") == evil + "\n"
    browser.run("document.getElementById('clear').click()")  # the scripted engine goes by the first wish it reads
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"b": {"type": "string"}}}}}
    browser.run(f"document.getElementById('tools').value = {json.dumps(json.dumps([tool]))}")
    ask(wish(say=f"<tool_call>\n<function=add>\n<parameter=b>\n{evil}\n</parameter>\n</function>\n</tool_call>"))
    assert evil in json.loads(last(".call pre"))["b"]
    assert browser.run("broken") == 0
    assert browser.run("document.querySelectorAll('#log img, #log script, #log svg, #log a, #log iframe').length") == 0
    # Even a page that made a mistake could run nothing.
    assert browser.run("(() => { try { document.body.innerHTML += '<b>x</b>'; return 'set'; } catch (e) { return e.name; } })()") == "TypeError"


def test_tools(server):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    start(server, f"document.getElementById('tools').value = {json.dumps(json.dumps([tool]))};"
                  "document.getElementById('thinking').value = 'off'")
    call = "<tool_call>\n<function=add>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    ask(wish(say="Sure.\n" + call.format(1) + "\n" + call.format(2)))
    assert browser.run("Array.from(document.querySelectorAll('.call pre')).map((e) => JSON.parse(e.textContent).a)") == [1, 2]
    assert browser.run("document.activeElement.tagName") == "TEXTAREA"
    browser.run("document.querySelectorAll('.call textarea').forEach((e, i) => { e.value = String(i); })")
    browser.run("Array.from(document.querySelectorAll('.call button')).pop().click()")
    browser.wait("document.querySelectorAll('.notes').length === 2")
    assert browser.run("messages.map((m) => m.role)") == ["user", "assistant", "tool", "tool", "assistant"]
    ids = browser.run("[messages[1].tool_calls.map((c) => c.id), [messages[2].tool_call_id, messages[3].tool_call_id]]")
    assert ids[0] == ids[1]
    browser.run("document.getElementById('tools').value = '[{'")
    enter("x")
    browser.wait("document.getElementById('status').textContent.includes('not JSON')")


def test_stop(server):
    start(server, "document.getElementById('thinking').value = 'off'")
    for stop in (lambda: browser.key("Escape", 27), lambda: browser.run("document.getElementById('stop').click()")):
        enter(wish(say="abc ", no_end=True, token_ms=20))
        browser.wait("document.querySelector('.assistant:last-of-type .text') && !document.getElementById('stop').disabled")
        assert browser.run("document.getElementById('log').getAttribute('aria-busy')") == "true"
        stop()
        browser.wait("document.getElementById('status').textContent === 'Stopped'")
        server.wait_idle(2)
    assert browser.run("document.getElementById('stop').disabled && !document.getElementById('send').disabled")


def test_settings(server):
    start(server, "for (const [id, v] of [['temperature', 9], ['top_p', 0.5]]) document.getElementById(id).value = v")
    enter("x")
    browser.wait("document.getElementById('status').textContent.includes('temperature')")  # the server's own words
    browser.run("document.getElementById('temperature').value = 0.5; document.getElementById('system').value = 'Be brief.'")
    body = browser.run("request()")
    assert body["temperature"] == 0.5 and body["top_p"] == 0.5 and "top_k" not in body
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    ask(wish(say="fails", fail_at=2))
    assert "failed" in last(".notes") and browser.run("document.getElementById('status').classList.contains('wrong')")


def test_state(server):
    start(server)
    browser.wait("document.querySelectorAll('#facts dd').length >= 2")
    assert "scripted" in browser.run("document.getElementById('model').textContent")
    metrics = "\n".join(["# HELP x", 'tokenfold_lanes{state="seated"} 2', 'tokenfold_lanes{state="free"} 2', "tokenfold_requests_waiting 3",
                         'tokenfold_prompt_cache_requests_total{result="hit"} 1',
                         'tokenfold_prompt_cache_requests_total{result="miss"} 4', 'tokenfold_tokens_total{kind="reply"} 100'])
    browser.run(f"clearInterval(looking); showState(parseMetrics({json.dumps(metrics)}), {{}})")
    facts = browser.run("document.getElementById('facts').innerText")
    assert "2 of 4 lanes" in facts and "3" in facts and "1 of 5" in facts, facts
    browser.run("showState({}, {running: 1, waiting: 2})")
    assert "2" in browser.run("document.getElementById('facts').innerText")


def test_machine(server):
    """Lanes, queue and pool as /state tells them: each page is drawn where it lies, in its owner's colour."""
    start(server)
    browser.wait("!document.getElementById('machine').hidden")
    state = {"lanes": [{"lane": 1, "request": 17, "state": "prompt", "prompt": 300, "prompt_done": 128, "resumed": 64, "reply": 0,
                        "longest": 50, "pages": 6, "ms": 5},
                       {"lane": 0, "request": 16, "state": "reply", "prompt": 100, "prompt_done": 100, "resumed": 0, "reply": 25,
                        "longest": 100, "pages": 4, "ms": 900}],
             "n_lane": 3, "waiting": [{"request": 20 + i, "reason": "LaneMemory: the pool is full", "prompt": 9, "longest": 5, "ms": 2500}
                                      for i in range(10)], "n_waiting": 12,
             "pages": {"n": 40, "rows": 64, "each": 1, "map": [[3, "0"], [1, "0+"], [2, "shared"], [2, "1"], [4, "1+"], [8, "cached"],
                                                               [16, "free"], [4, "state"]]}}
    browser.run(f"clearInterval(looking); showMachine({json.dumps(state)})")
    lanes = browser.run("Array.from(document.querySelectorAll('#lanes li'), (e) => e.innerText)")
    assert len(lanes) == 3 and "reply 25 of 100, prompt 100" in lanes[0] and "prompt 128 of 300, 64 resumed" in lanes[1] \
        and "free" in lanes[2]
    queue = browser.run("Array.from(document.querySelectorAll('#queue li'), (e) => e.textContent)")
    assert len(queue) == 9 and queue[0] == "request 20, prompt 9: LaneMemory: the pool is full, 2.5 s" and queue[8] == "and 4 more"
    said = browser.run("document.getElementById('pages').getAttribute('aria-label')")
    assert said == ("40 pages of 64 positions: lane 1, request 17: 2 in use, 4 claimed; lane 0, request 16: 3 in use, 1 claimed; "
                    "2 read by several requests; 8 of the prompt cache alone; 4 of lanes' and kept states; 16 free"), said
    # The middle of each square, as drawn.
    colors = browser.run("""(() => { const c = document.getElementById('pages'), pen = c.getContext('2d');
        return Array.from({length: 40}, (_, i) => Array.from(pen.getImageData((i % 32) * 10 + 4, Math.floor(i / 32) * 10 + 4, 1,
            1).data).join()); })()""")
    runs = [0, 3, 4, 6, 8, 12, 20, 36, 40]
    for a, b in zip(runs, runs[1:]):
        assert len(set(colors[a:b])) == 1, (a, b, colors[a:b])
    assert colors[3] == colors[8] == "0,0,0,0" and len({colors[i] for i in runs[:-1]}) == 7  # what is only claimed is empty inside
    big = {**state, "pages": {"n": 100000, "rows": 16, "each": 25, "map": [[4000, "free"]]}}
    browser.run(f"showMachine({json.dumps(big)})")
    assert "a square is 25 of them" in browser.run("document.getElementById('pool-note').textContent")
    browser.run("showMachine(null)")
    assert browser.run("document.getElementById('machine').hidden") is True


def test_access(server):
    """Everything that can be used has a name, and the keyboard reaches it in order."""
    start(server, "document.getElementById('settings').open = true; document.getElementById('thinking').value = 'off'")
    ask(wish(say="Hi."))
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    roles = {}
    for n in nodes:
        if n.get("ignored"):
            continue
        role, name = n["role"]["value"], n.get("name", {}).get("value", "")
        roles.setdefault(role, []).append(name)
        if role in ("button", "textbox", "spinbutton", "combobox", "log", "form", "complementary", "DisclosureTriangle", "image"):
            assert name, n
    assert {"main", "complementary", "banner", "log", "status", "form"} <= set(roles), sorted(roles)
    browser.run("document.activeElement.blur(); document.body.focus()")
    browser.open(server.url + "/#")
    browser.run("document.activeElement.blur()")
    reached = []
    for _ in range(12):
        browser.key("Tab", 9)
        reached.append(browser.run("document.activeElement.id || document.activeElement.className || document.activeElement.tagName"))
    assert {"clear", "log", "prompt", "send"} <= set(reached), reached


def test_nothing_from_outside(server):
    start(server)
    ask(wish(say="x</think>y"))
    urls = {e["request"]["url"] for e in browser.named("Network.requestWillBeSent")}
    assert urls and all(u.startswith((server.url + "/", "data:")) for u in urls), urls
    wrong = [e["entry"]["text"] for e in browser.named("Log.entryAdded") if "metrics" not in e["entry"].get("url", "")
             and "props" not in e["entry"].get("url", "")]
    assert wrong == [] and browser.named("Runtime.exceptionThrown") == [], (wrong, browser.named("Runtime.exceptionThrown"))


def test_pictures(server):
    start(server)
    ask(wish(say="The user greets me.\n</think>\n\nHello! What can I do for you?"))
    browser.send("Emulation.setDeviceMetricsOverride", width=380, height=700, deviceScaleFactor=1, mobile=True)
    assert browser.run("document.documentElement.scrollWidth") <= 380  # nothing sticks out on a phone
    folder = os.environ.get("TF_SCREENSHOTS")
    if folder:
        browser.screenshot(os.path.join(folder, "phone.png"), 380, 700)
        browser.screenshot(os.path.join(folder, "wide.png"), 1200, 800)
        browser.screenshot(os.path.join(folder, "dark.png"), 1200, 800, dark=True)


def start_both():
    global browser
    browser = chromium.Chromium(path)
    return harness.Scripted("--thinks")


if __name__ == "__main__":
    try:
        harness.main(globals(), start_both)
    finally:
        if browser:
            browser.close()
