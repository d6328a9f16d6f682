"""What the executable of the fake runs: the fake, without the core that the package imports.

    python -S fake_server_main.py PACKAGE_ROOT --faults FILE ...

The core takes three times as long to import as the fake needs to start, and a fake starts twice in
every run. Its own modules of the package are imported one by one, under a package without contents.
"""

from __future__ import annotations

import os
import sys
import types

PACKAGE = "batch_invariance"


def bare_package(root: str) -> types.ModuleType:
    """The package as a folder of modules and nothing else."""
    package = types.ModuleType(PACKAGE)
    package.__path__ = [os.path.join(root, PACKAGE)]
    package.__file__ = os.path.join(root, PACKAGE, "__init__.py")
    return package


if __name__ == "__main__":
    sys.modules[PACKAGE] = bare_package(sys.argv.pop(1))
    from fake_llama_server import main

    status = main()
    sys.stderr.flush()
    os._exit(status)
