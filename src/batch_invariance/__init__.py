"""batch-invariance: does batching change the scored outputs of one llama-server cell?"""

from __future__ import annotations

from batch_invariance._version import __version__ as __version__
