"""Drives the status page in a headless browser by its keyboard alone, over the browser's debugging pipe.

page_keys.py BROWSER PROFILE URL WORKER: narrows the list down to WORKER, drains it, puts it back, and prints what the page
shows after each as a line of JSON. The standard library is enough.
"""

import json
import os
import subprocess
import sys
import time


class Page:
    """A page under control: commands go out, answers come back, each ended by a zero byte."""

    def __init__(self, browser, profile, url):
        to_browser, self.write = os.pipe()
        self.read, from_browser = os.pipe()

        def place():
            # The browser reads from 3 and writes to 4; neither must be in the way of the other.
            reading, writing = os.dup(to_browser), os.dup(from_browser)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--window-size=1300,1000"]
        self.process = subprocess.Popen(
            [browser, *flags, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(3, 4, to_browser, from_browser), preexec_fn=place, stderr=subprocess.DEVNULL)
        self.number, self.pending, self.session = 0, b"", None
        target = self.ask("Target.createTarget", url=url)["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def ask(self, method, **params):
        self.number += 1
        told = {"id": self.number, "method": method, "params": params}
        if self.session:
            told["sessionId"] = self.session
        os.write(self.write, json.dumps(told).encode() + b"\0")
        while True:
            while b"\0" not in self.pending:
                self.pending += os.read(self.read, 65536)
            message, self.pending = self.pending.split(b"\0", 1)
            answer = json.loads(message)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]

    def value(self, expression):
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression, what):
        deadline = time.monotonic() + 20
        while not self.value(expression):
            if time.monotonic() > deadline:
                raise SystemExit(f"{what} did not come true: " + str(self.value("document.body.innerText")))
            time.sleep(0.05)

    def press(self, key, code, text=None):
        more = {"text": text} if text else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **more)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


def main(browser, profile, url, worker):
    page = Page(browser, profile, url)
    try:
        page.until("document.querySelectorAll('#workers tr').length > 1", "the workers are shown")
        page.press("/", 191, "/")
        page.until("document.activeElement.id === 'filter'", "the filter has the focus")
        page.ask("Input.insertText", text=worker)
        page.until("document.querySelectorAll('#workers tr').length === 1", "one worker is left")
        row = "[...document.querySelector('#workers tr').cells].map(cell => cell.innerText)"
        for label, state in [("drain " + worker, "draining"), ("put back " + worker, "active")]:
            # By the tabulator, as somebody without a pointer would; the page has far fewer stops than this.
            for _ in range(60):
                if page.value("document.activeElement.getAttribute('aria-label')") == label:
                    break
                page.press("Tab", 9)
            else:
                raise SystemExit(f"no way leads to `{label}`")
            page.press("Enter", 13, "\r")
            page.until(f"document.querySelector('#workers tr').cells[2].innerText === '{state}'", state)
            print(json.dumps({"state": page.value(row + "[2]"), "said": page.value("document.getElementById('said').innerText")}))
    finally:
        page.process.terminate()
        page.process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
