"""Headless Chromium over its debugging pipe, with nothing but the standard library."""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time


def find():
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        path = shutil.which(name)
        if path and not os.path.realpath(path).startswith("/snap"):
            return path
    print("SKIP no Chromium is installed (Debian's package chromium)")
    sys.exit(77)


class Chromium:
    def __init__(self, path):
        self.profile = tempfile.TemporaryDirectory(prefix="tokenfold-page-", ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.frm, to_write = os.pipe()

        def place():  # the pipe's ends have to be descriptors 3 and 4
            high = [os.dup2(to_read, 100), os.dup2(to_write, 101)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [path, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-background-networking", "--no-first-run", "--hide-scrollbars", f"--user-data-dir={self.profile.name}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=place)
        os.close(to_read)
        os.close(to_write)
        self.n, self.answers, self.events, self.changed = 0, {}, [], threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.send(domain + ".enable")

    session = None

    def _read(self):
        held = b""
        while True:
            piece = os.read(self.frm, 1 << 20)
            if not piece:
                return
            held += piece
            *whole, held = held.split(b"\0")
            with self.changed:
                for text in whole:
                    message = json.loads(text)
                    if "id" in message:
                        self.answers[message["id"]] = message
                    else:
                        self.events.append(message)
                self.changed.notify_all()

    def send(self, method, **params):
        self.n += 1
        number = self.n
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        with self.changed:
            if not self.changed.wait_for(lambda: number in self.answers, 60):
                raise AssertionError(f"Chromium did not answer {method}")
            answer = self.answers.pop(number)
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["result"]

    def run(self, script):
        r = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r:
            raise AssertionError(r["exceptionDetails"])
        return r["result"].get("value")

    def wait(self, script, seconds=20):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.run(script):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}\n{self.run('document.body.innerText')}")

    def open(self, url):
        self.events.clear()
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def key(self, key, code, text=None, **more):
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **extra, **more)

    def type(self, text):
        self.send("Input.insertText", text=text)

    def screenshot(self, path, width, height, dark=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        time.sleep(0.3)
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def named(self, method):
        return [e["params"] for e in self.events if e["method"] == method]

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.profile.cleanup()
