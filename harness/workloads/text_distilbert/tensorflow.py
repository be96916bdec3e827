"""A DistilBERT encoder of keras-hub with its classification head, from scratch."""

from __future__ import annotations

from typing import Any

import keras
from keras import initializers, layers

from harness.data import VOCABULARY
from harness.spec import Workload

REQUIRES = ("keras_hub",)

INITIAL_DEVIATION = 0.02


class PaddingMask(layers.Layer):
    """Tokens int [n, tokens] to 1 where there is a word and 0 where there is padding (token 0)."""

    def call(self, tokens: Any) -> Any:
        """Runs inside the model, so that a batch is tokens and nothing else."""
        return keras.ops.cast(keras.ops.not_equal(tokens, 0), "int32")


def _normal() -> Any:
    """A new initialiser: one that is used twice draws the same numbers twice."""
    return initializers.RandomNormal(stddev=INITIAL_DEVIATION)


def _start_as_transformers(encoder: Any) -> None:
    """Draw all weight matrices from a plain normal, and leave out the one dropout that transformers does not have.

    keras-hub truncates its normal at two deviations, and drops parts of the attention's output a second time.
    """
    for variable in encoder.trainable_variables:
        if variable.name in ("embeddings", "kernel"):
            variable.assign(_normal()(variable.shape))
    for layer in encoder.transformer_layers:
        for part in layer._flatten_layers():
            if part.name == "self_attention_dropout":
                part.rate = 0.0


def classifier(size: int, classes: int, *, depth: int, heads: int, width: int, hidden: int) -> Any:
    """Tokens int32 [n, size] to logits [n, classes], from the state at the first token."""
    import keras_hub

    encoder = keras_hub.models.DistilBertBackbone(
        vocabulary_size=VOCABULARY, num_layers=depth, num_heads=heads, hidden_dim=width, intermediate_dim=hidden
    )
    _start_as_transformers(encoder)
    tokens = keras.Input((size,), dtype="int32")
    states = encoder({"token_ids": tokens, "padding_mask": PaddingMask()(tokens)})
    first = layers.Dense(width, activation="relu", kernel_initializer=_normal())(states[:, 0])
    head = layers.Dense(classes, dtype="float32", kernel_initializer=_normal())
    return keras.Model(tokens, head(layers.Dropout(0.2)(first)))


def build(_workload: Workload, size: int, classes: int) -> Any:
    """DistilBERT's own size."""
    return classifier(size, classes, depth=6, heads=12, width=768, hidden=3072)
