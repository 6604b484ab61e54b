"""A small transformer: a causal language model whose attention is the caller's function."""

import torch
from torch import nn


class Block(nn.Module):
    """Attention, then a multilayer perceptron, each behind a layer norm and added to what comes in."""

    def __init__(self, heads, heads_kv, head_dim):
        super().__init__()
        self._heads, self._head_dim = (heads, heads_kv, heads_kv), head_dim
        width = heads * head_dim
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, sum(self._heads) * head_dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x, attention):
        packed = self.qkv(self.norm(x)).unflatten(-1, (-1, self._head_dim))
        x = x + self.out(attention(*packed.split(self._heads, dim=2)).flatten(2))
        return x + self.perceptron(x)


class Model(nn.Module):
    """Logits [batch, row, symbol] of symbols [batch, row]; `attention` takes q, k and v as [batch, row, head, dim],
    float32, and returns O likewise."""

    def __init__(self, symbols, length, layers, heads, heads_kv, head_dim):
        super().__init__()
        width = heads * head_dim
        self.embedding = nn.Embedding(symbols, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(Block(heads, heads_kv, head_dim) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols)
        self.apply(_initialise)

    def forward(self, symbols, attention):
        x = self.embedding(symbols) + self.positions
        for block in self.blocks:
            x = block(x, attention)
        return self.head(self.norm(x))


def _initialise(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
