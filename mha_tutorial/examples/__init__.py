"""The worked examples of the book."""
