"""A DistilBERT encoder of transformers with its classification head, from scratch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from harness.data import VOCABULARY
from harness.spec import Workload

REQUIRES = ("transformers",)

INITIAL_DEVIATION = 0.02


class Classifier(nn.Module):
    """Tokens int [n, tokens] (0 is padding) to logits [n, classes], from the state at the first token."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, classes))
        for module in self.head:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_DEVIATION)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mask the padding; of four dimensions, so that the encoder need not look into it (a wait for the device)."""
        mask = (tokens != 0)[:, None, None, :]
        states: Tensor = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        logits: Tensor = self.head(states[:, 0])
        return logits


def classifier(classes: int, *, layers: int, heads: int, width: int, hidden: int) -> nn.Module:
    """An encoder of the given size (dropout 0.1, 512 positions, SDPA attention) under a :class:`Classifier`."""
    from transformers import DistilBertConfig, DistilBertModel

    config: Any = DistilBertConfig(
        vocab_size=VOCABULARY,
        n_layers=layers,
        n_heads=heads,
        dim=width,
        hidden_dim=hidden,
        initializer_range=INITIAL_DEVIATION,
        attn_implementation="sdpa",
    )
    return Classifier(DistilBertModel(config), width, classes)


def build(_workload: Workload, _size: int, classes: int) -> nn.Module:
    """DistilBERT's own size."""
    return classifier(classes, layers=6, heads=12, width=768, hidden=3072)
