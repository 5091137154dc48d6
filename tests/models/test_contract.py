"""What every layered model keeps, whatever is in it: one contract, run over all of them."""

import copy
from itertools import islice, pairwise

import pytest
import torch
from transformers import AutoModel

from descend.errors import InputError
from descend.models import (
    DUST,
    UT,
    DUSTConfig,
    LayeredClassifier,
    LayeredModel,
    UTConfig,
    ViTDenoiser,
    ViTDenoiserConfig,
    dct_dictionary,
    keep_first,
    plain_output,
)
from tests.support.networks import moved, network

OF_DINOV2 = {"use_mask_token": False, "layerscale_value": 1.0, "drop_path_rate": 0.0, "use_swiglu_ffn": False}
MODELS = {
    "ut": lambda: UT(UTConfig(depth=3)),
    "ut-untied": lambda: UT(UTConfig(depth=3, tied=False)),
    "ut-gaussian": lambda: UT(UTConfig(depth=3, kernel="gaussian")),
    "ut-heads": lambda: UT(UTConfig(depth=2, heads=4)),
    "dust": lambda: DUST(DUSTConfig(depth=3, atoms=400, layer="proximal")),
    "dust-untied": lambda: DUST(DUSTConfig(depth=3, atoms=400, layer="proximal", tied=False)),
    "dust-alone": lambda: DUST(DUSTConfig(depth=2, atoms=400, layer="proximal", l2=0.0)),
    "dust-alternating": lambda: DUST(DUSTConfig(depth=3, atoms=400, layer="alternating")),
    "dust-alternating-untied": lambda: DUST(DUSTConfig(depth=3, atoms=400, layer="alternating", tied=False)),
    "vit": lambda: ViTDenoiser(ViTDenoiserConfig(depth=3, hidden_size=64, intermediate_size=96)),
    "vit-dinov2": lambda: ViTDenoiser(
        ViTDenoiserConfig(depth=2, hidden_size=64, mlp_ratio=2, backbone="dinov2", **OF_DINOV2)
    ),
    "vit-pixels": lambda: ViTDenoiser(
        ViTDenoiserConfig(depth=2, hidden_size=192, intermediate_size=96, image_size=80, patch_size=8, readout="pixels")
    ),
    "vit-resized": lambda: ViTDenoiser(
        ViTDenoiserConfig(depth=2, hidden_size=64, intermediate_size=96, image_size=64, patch_size=8)
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def started(request):
    torch.manual_seed(0)
    return MODELS[request.param]()


@pytest.fixture
def model(started):
    """A model a little away from its start, where UT's S = 0 and ViT's decoder sees nothing, in eval mode."""
    return moved(copy.deepcopy(started), 0.01)


@pytest.fixture
def patches():
    """What the video task gives: (B, T, N, P)."""
    return torch.rand(2, 3, 100, 256, generator=torch.Generator().manual_seed(2))


def loss(model, patches):
    """One number that sees every layer."""
    return sum((layer + 1) * read.square().mean() for layer, read in enumerate(model.predictions(patches)))


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_every_layer_reads_as_a_prediction_and_the_last_as_the_models_own(model, patches):
    assert isinstance(model, LayeredModel)
    assert model.depth == model.config.depth
    hidden, predictions = model.layer_outputs(patches), list(model.predictions(patches))
    assert len(hidden) == len(predictions) == model.depth + 1
    assert len({state.shape for state in hidden}) == 1
    own = isinstance(model, DUST) and not model.config.tied  # a dictionary for each layer
    for layer, (state, prediction) in enumerate(zip(hidden, predictions, strict=True)):
        assert prediction.shape == patches.shape
        torch.testing.assert_close(model.readout(state, **({"layer": layer} if own else {})), prediction)
    assert all(not torch.allclose(one, other) for one, other in pairwise(hidden))
    output = model(patches, output_hidden_states=True)
    torch.testing.assert_close(output.reconstruction, predictions[-1])
    torch.testing.assert_close(output.hidden_states, hidden)
    assert model(patches).hidden_states is None


@torch.no_grad()
def test_a_layer_runs_when_its_prediction_is_asked_for(model, patches):
    expected = list(model.predictions(patches))[1]
    later = [*model.layer_modules][1:]
    if not later:  # UT's and DUST's layers are no modules
        runs = iter([model._run])
        model._run = lambda *args: next(runs)(*args)  # a second layer would raise
    for block in later:
        block.register_forward_hook(lambda *_: pytest.fail("a later block ran"))
    torch.testing.assert_close(next(islice(model.predictions(patches), 1, None)), expected)


TEXTS = {"input_ids": torch.arange(5, 40).reshape(5, 7), "attention_mask": torch.ones(5, 7)}


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("kind", [*MODELS, "bert", "llama", "descend-mean-pooled", "descend-text-ut"])
def test_gradient_checkpointing_changes_memory_only(kind, patches):
    """Of classifiers too: of Transformers' blocks, and of those whose forward pass is Descend's."""
    denoiser = kind in MODELS
    model = moved(MODELS[kind](), 0.01) if denoiser else LayeredClassifier(network(kind))
    frugal = copy.deepcopy(model)
    frugal.saved.gradient_checkpointing_enable()
    kept = {}
    for name, one in {"plain": model.train(), "frugal": frugal.train()}.items():
        torch.manual_seed(1)
        sizes = []
        # Tensors inside a checkpoint go to its own hooks, not to these.
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            value = loss(one, patches if denoiser else TEXTS)
        value.backward()
        kept[name] = (value, sum(sizes))
    assert torch.equal(kept["plain"][0], kept["frugal"][0])
    assert kept["frugal"][1] < kept["plain"][1]
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradients(frugal)[name], gradient, rtol=1e-5, atol=1e-7, msg=name)


def test_hard_inputs_stay_finite(model, patches):
    """Black, white and noise of γ = 20, in bfloat16, which has the range of single precision and less accuracy."""
    torch.manual_seed(2)
    clean = patches[:1]
    hard = torch.cat([torch.zeros_like(clean), torch.ones_like(clean), clean + 20 * 0.18 * torch.randn_like(clean)])
    model.to(torch.bfloat16).train()
    value = loss(model, hard.to(torch.bfloat16))
    value.backward()
    assert value.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())


def test_the_first_layers_alone_are_a_model_that_the_auto_class_loads(model, patches, tmp_path):
    expected = list(model.predictions(patches))[1]
    keep_first(model, 1)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is type(model) and not loaded.training and loaded.depth == model.depth == 1
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict() | {"architectures": [type(model).__name__]}
    for each in (model, loaded):
        torch.testing.assert_close(plain_output(each, patches), expected, rtol=1e-5, atol=1e-5)


def test_half_precision_is_near(model, patches):
    expected = model(patches).reconstruction
    with torch.autocast("cpu", torch.bfloat16):
        automatic = model(patches).reconstruction
    pure = model.to(torch.bfloat16)(patches.bfloat16()).reconstruction
    assert pure.dtype == torch.bfloat16
    for half in (automatic, pure):
        assert (half.float() - expected).norm() < 0.05 * expected.norm()


def test_every_parameter_learns_from_the_last_layer_alone(started, patches):
    """From the very start; but ViT's decoder, at zero, lets the blocks see a gradient only after its first step."""
    torch.manual_seed(0)
    model = copy.deepcopy(started).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noisy = patches + 0.1 * torch.randn_like(patches)
    for _ in range(2):
        optimizer.zero_grad()
        (model(noisy).reconstruction - patches).square().mean().backward()
        optimizer.step()
    for parameter, gradient in gradients(model).items():
        # Softmax does not feel what is added to all keys: the true gradient of a key's bias is zero.
        assert gradient is not None and (gradient.any() or parameter.endswith("k_proj.bias")), parameter


@pytest.mark.parametrize("shape", [(3, 100, 256), (2, 3, 100, 255), (2, 3, 256), (2, 3, 160, 160), (1, 2, 3, 100, 256)])
def test_a_wrong_shape_is_named(model, shape):
    for read in (model, lambda patches: list(model.predictions(patches))):
        with pytest.raises(InputError, match=r"patches.*\(B, T, N, P\).*\(" + str(shape)[1:-1]):
            read(torch.zeros(shape))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UTConfig(depth=0), "depth must be at least 1"),
        (lambda: DUSTConfig(layer="parallel"), r"layer.*'alternating'.*'proximal'.*'parallel'"),
        (lambda: DUSTConfig(c=0.0), r"\bc\b.*0\.0"),
        (lambda: DUSTConfig(c=float("inf")), r"\bc\b.*inf"),
        (lambda: DUST(DUSTConfig(atoms=500)), "square number"),
        (lambda: dct_dictionary(16, 1000), "1000.*1024"),
        (lambda: ViTDenoiserConfig(depth=0), "depth must be at least 1"),
        (lambda: ViTDenoiserConfig(patch_size=15), "patches.*15.*160"),
        (lambda: ViTDenoiserConfig(frame_patch=7), "patches.*160"),
        (lambda: ViTDenoiserConfig(resample="lanczos"), "resample must be one of"),
        (lambda: ViTDenoiserConfig(readout="mean"), "readout.*'decoder'.*'pixels'.*'mean'"),
        (lambda: ViTDenoiserConfig(image_mean=[0.5]), "num_channels = 3.*1 and 3"),
        (lambda: ViTDenoiserConfig(backbone="bert"), "backbone.*'vit', 'dinov2'.*'bert'"),
    ],
)
def test_a_configuration_that_can_not_be_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
