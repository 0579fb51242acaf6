"""What the package can use and does not install by itself, and how to install it."""

from importlib import import_module

EXTRAS = {  # module: the library's own name, and the extra of this package that installs it
    "torch": ("PyTorch", "torch"),
    "matplotlib": ("Matplotlib", "figures"),
    "safetensors": ("safetensors", "convert"),
    "ml_dtypes": ("ml_dtypes", "convert"),
    "gguf": ("gguf", "models"),
    "tokenizers": ("tokenizers", "models"),
    "jinja2": ("Jinja2", "models"),
    "filelock": ("filelock", "models"),
}


def require(purpose: str, *modules: str) -> None:
    """Import modules, or say which extra installs the one that is missing.

    Raises
    ------
    ModuleNotFoundError
        If a module of `EXTRAS` is not installed. One that is installed and lacks something itself says so.

    Examples
    --------
    >>> require("this example", "json")
    """
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name not in EXTRAS:
                raise
            library, extra = EXTRAS[error.name]
            raise ModuleNotFoundError(
                f'{purpose} needs {library}: pip install "mha-tutorial[{extra}]"', name=error.name
            ) from error
