"""Keys and values of prompts that were seen, kept in host memory, on a disk and in a remote store.

A prompt whose beginning was computed before, in this process or another one, is not computed again::

    from torch_hetero import kv

    store = kv.Store(kv.Spec.from_model(model), cpu="2GiB", ssd="dir=/var/cache/kv,size=64GiB")
    cache = store.load(input_ids, model.config)  # a transformers cache with what is known of the prompt
    output = model.generate(input_ids, past_key_values=cache)
    store.save(output[0], cache)

Serving engines with pages of their own use `Store.match`, `Store.get` and `Store.put`. `python -m torch_hetero.kv`
inspects folders, measures disks, and replays traces of requests.
"""

from torch_hetero.kv import operators  # noqa: F401  registers hetero::kv_gather and kv_scatter
from torch_hetero.kv.spec import Spec
from torch_hetero.kv.store import Match, Request, Store, save_trace

__all__ = ["Match", "Request", "Spec", "Store", "save_trace"]
