"""`python -m learnvllm …` is `learnvllm …`; it works also where the console script is not on the PATH."""

import sys

from learnvllm.cli import main

if __name__ == "__main__":
    sys.exit(main())
