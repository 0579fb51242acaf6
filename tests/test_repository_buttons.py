"""Buttons to the repository appear when the build knows it, and not otherwise."""

from types import SimpleNamespace

import pytest
import repository_buttons


@pytest.fixture
def config():
    return SimpleNamespace(html_theme_options={"use_download_button": True})


def test_a_local_build_has_no_buttons(config, monkeypatch):
    monkeypatch.delenv("BOOK_REPOSITORY", raising=False)
    repository_buttons.show_buttons(None, config)
    assert config.html_theme_options == {"use_download_button": True}


def test_the_publishing_build_has_all_of_them(config, monkeypatch):
    monkeypatch.setenv("BOOK_REPOSITORY", "https://github.com/someone/book")
    monkeypatch.setenv("BOOK_BRANCH", "trunk")
    repository_buttons.show_buttons(None, config)
    options = config.html_theme_options
    assert options["repository_url"] == "https://github.com/someone/book"
    assert options["repository_branch"] == "trunk"
    assert options["use_repository_button"]
    assert options["use_source_button"]
    assert options["use_issues_button"]
    assert "colab" in options["launch_buttons"]["colab_url"]


def test_colab_opens_the_copies_that_install_first(config, monkeypatch):
    monkeypatch.setenv("BOOK_NOTEBOOKS", "stamped")
    config.html_theme_options["repository_branch"] = "main"
    colab = {"text": "Colab", "url": "https://colab.example/github/someone/book/blob/main/book/index.ipynb"}
    other = {"text": "Repository", "url": "https://github.com/someone/book/blob/main/book/index.ipynb"}
    context = {"header_buttons": [{"buttons": [colab, other]}, {"url": "alone"}]}
    repository_buttons.open_stamped_copies(SimpleNamespace(config=config), "book/index", "page.html", context, None)
    assert colab["url"].endswith("/blob/stamped/book/index.ipynb")
    assert other["url"].endswith("/blob/main/book/index.ipynb")
