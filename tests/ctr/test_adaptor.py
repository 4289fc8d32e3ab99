"""The hybrid-expert adaptor against its equation, written as a plain loop."""

import math

import pytest
import torch

from dare_job.evaluate.ctr.models import HybridExpertAdaptor


def plain(adaptor: HybridExpertAdaptor, side: str, vector: list[float]) -> list[float]:
    """The equation in plain Python, one number at a time."""
    def linear(layer, values):
        return [sum(w * v for w, v in zip(row, values, strict=True)) + b
                for row, b in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)]

    def expert(network, values):
        return linear(network[3], [max(0.0, value) for value in linear(network[1], values)])

    scores = linear(adaptor.gate[side], vector)
    weights = [math.exp(score) / sum(map(math.exp, scores)) for score in scores]
    outputs = [expert(network, vector) for network in [*adaptor.shared, *adaptor.dedicated[side]]]
    return [sum(w * output[place] for w, output in zip(weights, outputs, strict=True))
            for place in range(len(outputs[0]))]


@pytest.mark.parametrize("shared, dedicated", [(2, 3), (1, 1), (0, 2), (3, 0)])
def test_the_equation_holds(shared, dedicated):
    torch.manual_seed(3)
    adaptor = HybridExpertAdaptor(["user", "item"], 5, out=4, hidden=6, shared=shared,
                                  dedicated=dedicated).eval()
    vectors = torch.randn(7, 5)
    for side in ("user", "item"):
        found = adaptor(side, vectors, torch.ones(7, dtype=torch.bool))
        assert found.shape == (7, 4)
        for row, vector in zip(found.tolist(), vectors.tolist(), strict=True):
            assert row == pytest.approx(plain(adaptor, side, vector), abs=1e-5)


def test_shared_experts_learn_from_both_sides_and_dedicated_ones_from_theirs():
    adaptor = HybridExpertAdaptor(["user", "item"], 5)
    adaptor("user", torch.randn(3, 5), torch.ones(3, dtype=torch.bool)).sum().backward()
    assert all(parameter.grad is not None for parameter in adaptor.shared.parameters())
    assert all(parameter.grad is None for parameter in adaptor.dedicated["item"].parameters())
    assert all(parameter.grad is not None for parameter in adaptor.dedicated["user"].parameters())


def test_without_a_text_the_output_is_a_learned_vector_whatever_the_row_holds():
    adaptor = HybridExpertAdaptor(["user"], 5, out=4)
    with torch.no_grad():
        adaptor.none["user"].copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    found = adaptor("user", torch.randn(2, 5), torch.tensor([False, True]))
    assert found[0].tolist() == [1.0, 2.0, 3.0, 4.0] and found[1].tolist() != [1.0, 2.0, 3.0, 4.0]
    found[0].sum().backward()
    assert adaptor.none["user"].grad.tolist() == [1.0] * 4
