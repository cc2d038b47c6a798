"""The command ``headlong``, also as ``python -m headlong``."""

import signal
import sys

from ._headlong import main as _main


def main() -> "int":
    """Runs the command line of this process, and gives its exit code."""
    # The command saves and ends by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _main(["headlong", *sys.argv[1:]], [sys.executable, "-m", "headlong"])


if __name__ == "__main__":
    sys.exit(main())
