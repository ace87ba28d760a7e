"""A small decoder of own code."""

import torch
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation writes it
from torch import nn

DIM, HEADS, VOCABULARY = 256, 4, 1000


class Attention(nn.Module):
    def __init__(self, dim, heads, device, dtype):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim, bias=False, device=device, dtype=dtype)
        self.key = nn.Linear(dim, dim, bias=False, device=device, dtype=dtype)
        self.value = nn.Linear(dim, dim, bias=False, device=device, dtype=dtype)
        self.out = nn.Linear(dim, dim, bias=False, device=device, dtype=dtype)

    def forward(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        batch, length, width = query.shape
        size = width // self.heads
        query, key, value = (each.view(batch, length, -1, size).transpose(1, 2) for each in (query, key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    def __init__(self, dim, device, dtype):
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim, bias=False, device=device, dtype=dtype)
        self.down = nn.Linear(4 * dim, dim, bias=False, device=device, dtype=dtype)

    def forward(self, x):
        hidden = F.gelu(self.up(x))
        return self.down(hidden)


class Block(nn.Module):
    def __init__(self, dim, heads, device, dtype):
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim, device=device, dtype=dtype)
        self.attention = Attention(dim, heads, device, dtype)
        self.feed_forward_norm = nn.LayerNorm(dim, device=device, dtype=dtype)
        self.feed_forward = FeedForward(dim, device, dtype)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Decoder(nn.Module):
    def __init__(self, layers, device, dtype=torch.float32, dim=DIM, heads=HEADS):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dim, device=device, dtype=dtype)
        self.blocks = nn.ModuleList([Block(dim, heads, device, dtype) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim, device=device, dtype=dtype)
        self.head = nn.Linear(dim, VOCABULARY, bias=False, device=device, dtype=dtype)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x)


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
