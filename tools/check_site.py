"""Look through the built pages for what a reader would trip over: requests to other hosts, two search fields.

python tools/check_site.py _build/html
"""

import re
import sys
from pathlib import Path

from bs4 import BeautifulSoup

ELSEWHERE = re.compile(r"^(https?:)?//")
LOADED = {  # what a browser fetches without being asked
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "link": "href",
}
FETCHED_LINKS = {
    "stylesheet",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "icon",
    "shortcut icon",
}


def main(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    if not pages:
        sys.exit(f"{site}: no page has been built")
    faults = [f"{page}: {fault}" for page in pages for fault in _faults(page)]
    faults += [
        f"{style}: loads {address}"
        for style in sorted(site.rglob("*.css"))
        for address in re.findall(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)", style.read_text(encoding="utf-8"))
    ]
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(pages)} pages make no request to another host and have one search field each")


def _faults(page: Path):
    soup = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    for name, attribute in LOADED.items():
        for element in soup.find_all(name):
            address = element.get(attribute, "")
            fetched = name != "link" or FETCHED_LINKS & {" ".join(element.get("rel", [])), *element.get("rel", [])}
            if fetched and ELSEWHERE.match(address):
                yield f"<{name}> loads {address}"
    for script in soup.find_all("script", src=None):
        for address in re.findall(r"https?://[^\s\"'`;]+", script.get_text()):
            yield f"a script names {address}"
    fields = len(soup.select("input[type=search]"))
    if fields > (2 if page.name == "search.html" else 1):  # the search page has its own beside the overlay
        yield f"{fields} search fields"
    for image in soup.select("article img"):
        if not image.get("alt", "").strip() or image["alt"].startswith(("../", "_images", "data:")):
            yield f"an image without alternative text: {image.get('src', '')[:60]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
