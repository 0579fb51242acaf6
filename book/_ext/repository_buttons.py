"""Shows the buttons to source, issues and Colab when the build is told its repository, and only then.

The publishing workflow sets ``BOOK_REPOSITORY`` to the repository's address, and ``BOOK_NOTEBOOKS`` to the
branch with the copies of the notebooks that install the package first, which the Colab button opens.
"""

import os


def setup(app):
    app.connect("config-inited", show_buttons)
    app.connect("html-page-context", open_stamped_copies, priority=900)  # after the theme has made its buttons
    return {"parallel_read_safe": True, "version": "1"}


def show_buttons(app, config):
    repository = os.environ.get("BOOK_REPOSITORY")
    if repository:
        config.html_theme_options |= {
            "repository_url": repository,
            "repository_branch": os.environ.get("BOOK_BRANCH", "main"),
            "use_repository_button": True,
            "use_source_button": True,
            "use_issues_button": True,
            "launch_buttons": {"colab_url": "https://colab.research.google.com"},
        }


def open_stamped_copies(app, pagename, templatename, context, doctree):
    branch = app.config.html_theme_options.get("repository_branch")
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []):
            if button.get("text") == "Colab":
                stamped = os.environ.get("BOOK_NOTEBOOKS", "notebooks")
                button["url"] = button["url"].replace(f"/blob/{branch}/", f"/blob/{stamped}/")
