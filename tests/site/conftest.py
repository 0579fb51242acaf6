"""The built site, served on this machine, in Chromium. Nothing is built here: ``make test-site`` does that.

Without a site or a browser every test is skipped with the reason, or, with ``MHA_SITE=required``, fails.
"""

import functools
import gzip
import http.server
import os
import shutil
import threading
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "_build/html"
VIEWS = {  # width, height, colours
    "desktop": (1280, 800, "light"),
    "desktop-dark": (1280, 800, "dark"),
    "phone": (390, 844, "light"),
    "phone-dark": (390, 844, "dark"),
    "narrow": (320, 640, "light"),
}
PAGES = sorted(
    path.relative_to(SITE).as_posix()
    for path in SITE.rglob("*.html")
    if "_static" not in path.parts and path != SITE / "index.html"
)
CHAPTERS = [page for page in PAGES if page.startswith("book/")]
OBSERVE = """
window.shift = 0;
new PerformanceObserver((list) => list.getEntries().forEach((entry) => {
  if (!entry.hadRecentInput) window.shift += entry.value;
})).observe({type: "layout-shift", buffered: true});
"""

AXE = (Path(__file__).parent / "axe/axe.min.js").read_text(encoding="utf-8")
VIOLATIONS = """() => axe.run(document, {resultTypes: ["violations"],
  rules: {"label-content-name-mismatch": {enabled: true}, "target-size": {enabled: true}}})
  .then(({violations}) => violations.map(({id, nodes}) => `${id}: ${nodes.map(({html}) => html).join(" ")}`))"""
SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
OUTLINE = """() => {
  const at = document.activeElement;
  return parseFloat(getComputedStyle(at.matches(".ex-tokens input") ? at.parentElement : at).outlineWidth);
}"""


def unavailable(reason: str):
    """Skip, or fail where the site is what is tested."""
    if os.environ.get("MHA_SITE") == "required":
        pytest.fail(f"MHA_SITE=required, but {reason}")
    pytest.skip(reason)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def copyfile(self, source, outputfile):
        with suppress(ConnectionError):  # the page was left before it had all come
            super().copyfile(source, outputfile)


@pytest.fixture(scope="session")
def address():
    """Where the site is served."""
    if not CHAPTERS:
        unavailable(f"there is no site in {SITE}: make book")
    handler = functools.partial(Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="session")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("playwright is not installed: pip install -e '.[site]'")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        unavailable("there is no Chromium: apt install chromium")
    with (
        sync_playwright() as playwright,
        closing(playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])) as browser,
    ):
        yield browser


class Visit:
    """A reader with a browser of a certain size, who has not been here before; what goes wrong is noted."""

    def __init__(self, page, address):
        self.page, self.address, self.faults = page, address, []
        self.files: set[str] = set()
        page.on("requestfinished", lambda request: self.files.add(unquote(urlsplit(request.url).path).lstrip("/")))
        page.on("console", lambda message: message.type == "error" and self.note("console", message.text))
        page.on("pageerror", lambda error: self.note("error", error))
        page.on("requestfailed", lambda request: self.failed(request))
        page.on("response", lambda answer: answer.status >= 400 and self.note(answer.status, answer.url))
        page.on("request", lambda request: self.foreign(request.url))
        page.add_init_script(OBSERVE)

    def note(self, *words):
        self.faults.append(" ".join(map(str, words)))

    def failed(self, request):
        if request.failure != "net::ERR_ABORTED":  # the page was left before it had all come
            self.note("failed", request.url, request.failure)

    def foreign(self, url):
        if not url.startswith((self.address, "data:", "blob:", "about:")):
            self.note("foreign", url)

    def open(self, name):
        """Go to a page and wait until its formulas are drawn."""
        self.page.goto(self.address + name)
        self.settle()
        return self

    def settle(self):
        self.page.wait_for_load_state("load")
        self.run("() => window.MathJax?.startup?.promise.then(() => 1)")
        self.run("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def bytes(self):
        """How many bytes have come, if the server compresses what gets smaller by it."""
        return sum(map(compressed, self.files))

    def run(self, script, argument=None):
        return self.page.evaluate(script, argument)


@functools.cache
def compressed(name: str) -> int:
    content = (SITE / name).read_bytes()
    return min(len(content), len(gzip.compress(content)))


@pytest.fixture(scope="session")
def contexts(browser):
    """One context a view, with what it has loaded and stored, and a way to have a new one."""

    def new(view):
        width, height, colours = VIEWS[view]
        size = {"width": width, "height": height}
        return browser.new_context(viewport=size, color_scheme=colours, reduced_motion="reduce")

    return functools.cache(new), new


@pytest.fixture
def reader(contexts, address):
    """Opens pages in the views above, and closes them; ``new`` is a reader who has never been here."""
    known, unknown = contexts

    @contextmanager
    def visit(view="desktop", new=False):
        context = (unknown if new else known)(view)
        with closing(context if new else context.new_page()) as opened:
            yield Visit(opened.new_page() if new else opened, address)

    return visit


@pytest.fixture
def shown(browser, tmp_path):
    """Opens an explorer as a page of its own, and sees that nothing fails and nothing else is asked for."""

    @contextmanager
    def show(explorer, view="desktop", script=True, touch=False):
        width, height, colours = VIEWS[view]
        options = {"java_script_enabled": script, "has_touch": touch, "reduced_motion": "reduce"}
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=colours, bypass_csp=True, **options
        )
        path, faults = tmp_path / "page.html", []
        path.write_text(explorer.page(), encoding="utf-8")
        with closing(context):
            page = context.new_page()
            page.on("console", lambda message: message.type == "error" and faults.append(message.text))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("request", lambda request: request.url != path.as_uri() and faults.append(request.url))
            page.goto(path.as_uri())
            yield page
        assert faults == []

    return show


def said(page) -> str:
    """What the line of an explorer says."""
    return page.locator(".ex-say").inner_text()
