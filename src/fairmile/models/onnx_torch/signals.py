"""Windows, Fourier transforms and filters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fairmile.models.onnx_torch.operators import Node, operator

_WINDOWS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@operator(*_WINDOWS)
def window(node: Node, size: Tensor) -> Tensor:
    count = int(size)
    a, b, c = _WINDOWS[node.type]
    period = count if node.get("periodic", 1) else count - 1
    angle = 2 * math.pi * torch.arange(count, dtype=torch.float64) / period
    return (a - b * torch.cos(angle) + c * torch.cos(2 * angle)).to(node.dtype(node.get("output_datatype", 1)))


@operator("DFT")
def dft(node: Node, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None) -> Tensor:
    along = int(axis) if axis is not None else node.get("axis", 1 if node.opset < 20 else -2)
    along = along + x.ndim if along < 0 else along
    count = int(length) if length is not None else None
    signal = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x.squeeze(-1).to(torch.complex64)
    signal = signal.to(torch.complex128) if x.dtype is torch.float64 else signal
    if node.get("inverse", 0):
        if x.shape[-1] == 2 and node.get("onesided", 0):
            real: Tensor = torch.fft.irfft(signal, count, along)
            return real.unsqueeze(-1)
        result = torch.fft.ifft(signal, count, along)
    else:
        result = torch.fft.fft(signal, count, along)
        if node.get("onesided", 0):
            result = result.narrow(along, 0, result.shape[along] // 2 + 1)
    return torch.view_as_real(result)


@operator("STFT")
def stft(node: Node, x: Tensor, step: Tensor, window: Tensor | None = None, length: Tensor | None = None) -> Tensor:
    size = int(length) if length is not None else int(window.shape[0]) if window is not None else x.shape[1]
    signal = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x.squeeze(-1)
    frames = signal.unfold(1, size, int(step))
    frames = frames * window if window is not None else frames
    result = torch.fft.fft(frames, dim=-1)
    if node.get("onesided", 1):
        result = result[..., : size // 2 + 1]
    return torch.view_as_real(result)


@operator("MelWeightMatrix")
def mel_weights(node: Node, bins: Tensor, length: Tensor, rate: Tensor, low: Tensor, high: Tensor) -> Tensor:
    count, size, sampled = int(bins), int(length), int(rate)
    lowest, highest = (2595 * math.log10(1 + float(each) / 700) for each in (low, high))
    mels = torch.arange(count + 2) * ((highest - lowest) / (count + 2)) + lowest
    edges = torch.floor((size + 1) * 700 * (10 ** (mels.to(torch.float64) / 2595) - 1) / sampled).to(torch.int64)
    result = torch.zeros(size // 2 + 1, count)
    for number in range(count):
        begin, centre, end = (int(edges[number + offset]) for offset in range(3))
        if centre == begin:
            result[centre, number] = 1
        else:
            places = torch.arange(begin, centre + 1)
            result[begin : centre + 1, number] = (places - begin) / (centre - begin)
        if end > centre:
            places = torch.arange(centre, end)
            result[centre:end, number] = (end - places) / (end - centre)
    return result.to(node.dtype(node.get("output_datatype", 1)))
