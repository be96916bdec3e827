"""What is done to each image after it is read.

``decode`` only decodes; ``augment`` adds costly random augmentation, which cannot be stored; ``prepare`` adds costly
deterministic preprocessing in every epoch, and ``prepared`` reads the stored result of the same preprocessing.
"""

from harness.spec import Toggle

TOGGLE = Toggle(
    name="sample",
    question="What does costly preprocessing do to the loader, and what does doing it once beforehand save?",
    levels=("decode", "augment", "prepare", "prepared"),
    default="decode",
)
