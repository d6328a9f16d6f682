"""batch-invariance: does batching change the scored outputs of one llama-server cell?

The public core: `certify` derives a `Certificate` from evidence, `verify_certificate` checks one
against it, `cert_is_green` and `is_promotable` are the rules for a gate. `Scorer` is the base
class for one's own task.
"""

from __future__ import annotations

from batch_invariance._version import __version__ as __version__
from batch_invariance.errors import BatchInvarianceError as BatchInvarianceError
from batch_invariance.invariance_diff.certificate import Certificate as Certificate
from batch_invariance.invariance_diff.certificate import build_cert as build_cert
from batch_invariance.invariance_diff.certificate import certify as certify
from batch_invariance.invariance_diff.model import Completion as Completion
from batch_invariance.invariance_diff.model import Item as Item
from batch_invariance.invariance_diff.model import Verdict as Verdict
from batch_invariance.invariance_diff.pairs import diff_arms as diff_arms
from batch_invariance.invariance_diff.rules import DIAGNOSTIC_FIELDS as DIAGNOSTIC_FIELDS
from batch_invariance.invariance_diff.rules import INVARIANT_FIELDS as INVARIANT_FIELDS
from batch_invariance.invariance_diff.rules import VOLATILE_FIELDS as VOLATILE_FIELDS
from batch_invariance.invariance_diff.verdict import decide_status as decide_status
from batch_invariance.invariance_diff.verify import Verification as Verification
from batch_invariance.invariance_diff.verify import cert_is_green as cert_is_green
from batch_invariance.invariance_diff.verify import is_promotable as is_promotable
from batch_invariance.invariance_diff.verify import verify_certificate as verify_certificate
from batch_invariance.scorer_api import Score as Score
from batch_invariance.scorer_api import Scorer as Scorer
