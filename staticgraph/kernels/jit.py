"""How the CPU kernels of this folder are compiled, said once.

Products may be fused into sums (``contract``) and the sign of a zero ignored (``nsz``); sums are
never reordered, so a result depends neither on the machine's vector width nor on the run. NaN and
infinity keep their meaning. No interpreter lock is held.
"""

from __future__ import annotations

import numba

kernel = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
