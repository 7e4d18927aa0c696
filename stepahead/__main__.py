"""`python -m stepahead` is `engine-cli`."""

from .cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
