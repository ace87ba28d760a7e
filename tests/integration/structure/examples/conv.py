"""A convolutional network under DDP, its stem frozen."""

import torch
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation writes it
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, SIDE, WIDTHS, CLASSES = 8, 32, (32, 64, 128), 100


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)

    def forward(self, x):
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(x + self.second_norm(self.second(y)))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTHS[0], 7, padding=3, bias=False)
        stages = []
        for width, following in zip(WIDTHS, (*WIDTHS[1:], None), strict=True):
            stages.append(Residual(width))
            if following is not None:
                stages.append(nn.Conv2d(width, following, 1, stride=2, bias=False))
        self.stages = nn.Sequential(*stages)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(WIDTHS[-1], CLASSES)

    def forward(self, images):
        x = self.stages(self.stem(images))
        x = x.mean(dim=(2, 3))
        return self.classifier(self.dropout(x))


def build(device):
    torch.manual_seed(0)
    network = Network().to(device)
    network.stem.requires_grad_(False)
    model = DistributedDataParallel(network, bucket_cap_mb=0.5, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(BATCH, 3, SIDE, SIDE, device=device)
    labels = torch.randint(CLASSES, (BATCH,), device=device)
    history = []

    def step():
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        history.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()

    return step
