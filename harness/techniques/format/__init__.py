"""How the training examples are stored.

``resident`` is no loading at all: a few batches stay on the device, which is what studies of the step want. The others
hold the same photographs: ``files`` loose JPEG files in a folder a class; ``tfrecord``, ``lmdb``, ``webdataset`` (tar
shards) and ``arrow`` (Hugging Face datasets) the same JPEG bytes packed; ``lmdb_decoded``, ``npy`` (memory-mapped) and
``ram`` the decoded uint8 pixels.
"""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="format",
    question="Does another format on the disk load faster, and does training notice?",
    levels=("resident", "files", "tfrecord", "lmdb", "webdataset", "arrow", "lmdb_decoded", "npy", "ram"),
    default="resident",
)
