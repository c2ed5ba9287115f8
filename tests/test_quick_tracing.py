"""The short way to torch's settings reads what torch's own way reads."""

from __future__ import annotations

import inspect

import pytest
import torch._dynamo.config
import torch._inductor.config
from torch.utils import _config_module as settings

QUICK = settings.ConfigModule.__getattr__
pytestmark = pytest.mark.skipif(
    QUICK.__name__ != "setting", reason="this torch reads its settings in another way"
)


@pytest.mark.parametrize("module", [torch._dynamo.config, torch._inductor.config])
def test_every_setting_is_what_torchs_own_way_reads(module):
    slow = inspect.getclosurevars(QUICK).nonlocals["slow"]
    names = [name for name, entry in module._config.items() if not entry.deprecated]
    assert len(names) > 50
    for name in names:
        assert QUICK(module, name) is slow(module, name), name


def test_a_changed_setting_is_read():
    before = torch._dynamo.config.verbose
    with torch._dynamo.config.patch(verbose=not before):
        assert torch._dynamo.config.verbose is not before
    assert torch._dynamo.config.verbose is before
    with pytest.raises(AttributeError):
        torch._dynamo.config.no_such_setting  # noqa: B018
