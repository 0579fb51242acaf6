"""Sets the questions of all chapters, and the cards, into their pages of the reference when the site is built."""

from equations import ROOT, chapters, title

from mha_tutorial.explorers import Cards, Progress, Quiz
from mha_tutorial.explorers.asked import ASKED
from mha_tutorial.explorers.decks import DECKS


def setup(app):
    app.connect("source-read", insert)
    return {"parallel_read_safe": True, "version": "1"}


def insert(app, docname, source):
    """Write questions or cards where the page has its mark."""
    if docname in PAGES:
        mark = f"<!-- {PAGES[docname].__name__} are inserted here when the book is built -->"
        source[0] = source[0].replace(mark, "\n".join(PAGES[docname]()))


def questions():
    yield raw(Progress())
    for path in chapters():
        if path.stem in ASKED:
            name = path.relative_to(ROOT)
            yield f"## {title(name.with_suffix('').as_posix())}\n\nOn [](/{name.as_posix()}).\n"
            yield raw(Quiz(path.stem))


def cards():
    for deck in DECKS:
        yield f"## {deck.capitalize()}\n"
        yield raw(Cards(deck))


def raw(explorer):
    """An explorer as it stands, in the middle of Markdown."""
    return f"```{{raw}} html\n{explorer.html()}\n```\n"


PAGES = {"book/reference/questions": questions, "book/reference/cards": cards}
