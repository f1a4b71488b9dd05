"""`python -m unlearnbench`, for launchers that start a module: torchrun, accelerate."""

import sys

from unlearnbench.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
