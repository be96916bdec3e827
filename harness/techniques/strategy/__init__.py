"""How devices train together.

``single`` is the plain step on one device with all threads. PyTorch has ``ddp`` (DistributedDataParallel), ``fsdp``
(``fully_shard``) and ``dp`` (DataParallel), TensorFlow ``mirrored`` and ``multiworker`` (the strategies of these
names). ``pipeline`` gives each device a part of the layers. ``tpu`` is TPUStrategy, and torch_xla. With one device,
each of them is the plain step on that device, unwrapped.
"""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="strategy",
    question="Which way of using several devices is faster, and which saves memory?",
    levels=("single", "ddp", "fsdp", "dp", "mirrored", "multiworker", "pipeline", "tpu"),
    default="single",
)
