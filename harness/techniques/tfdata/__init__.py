"""What a tf.data pipeline may do at a time.

``serial`` maps one element after the other and makes nothing ahead; ``parallel`` maps in parallel; ``prefetch`` maps
serially and keeps batches ready; ``autotune`` does both, as tf.data chooses; ``cache`` also keeps the decoded set in
memory after the first pass.
"""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="tfdata",
    question="Do parallel map, prefetch and cache of tf.data overlap loading with training?",
    levels=("serial", "parallel", "prefetch", "autotune", "cache"),
    default="autotune",
)
