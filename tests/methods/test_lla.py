import copy
import math

import pytest
import torch
from laplace import Laplace
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

from uqbench import jacobian, laplace_covariance, linearised
from uqbench.data import Split
from uqbench.errors import DivergenceError, TuningError
from uqbench.jacobian import AutogradJacobian
from uqbench.laplace import with_last_layer_trainable
from uqbench.laplace_covariance import (
    DiagonalCovariance,
    FunctionSpaceCovariance,
    ParameterSpaceCovariance,
    functional_covariance,
    hessian_root,
)
from uqbench.laplace_kronecker import KroneckerCovariance
from uqbench.linearised import linearise
from uqbench.method import Task
from uqbench.methods.lla import LastLayerLaplace, LinearisedLaplace
from uqbench.metrics import regression
from uqbench.tuning import best_on_grid, log_grid


def covariance_of(kind, network, data, prior, noise=1.0, at=None):
    covariance = kind(network, data.train, data.task)
    return covariance.at(data.validation.inputs if at is None else at, prior, noise)


def naive_covariance(truths, network, data, prior, noise=1.0, *, diagonal=False):
    """J(ΣJᵀHJ + λI)⁻¹Jᵀ from the dense Jacobian and the softmax Hessian, in parameter space."""
    jacobian = truths.naive_jacobian(network, data.train.inputs)
    outputs = network(data.train.inputs).detach()
    n, classes = outputs.shape
    blocks = jacobian.view(n, classes, -1)
    if data.task is Task.REGRESSION:
        hessian = torch.full((n, 1, 1), noise**-2, dtype=torch.float64)
    else:
        p = outputs.softmax(1)
        hessian = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    precision = (blocks.mT @ hessian @ blocks).sum(0)
    precision += prior * torch.eye(len(precision), dtype=torch.float64)
    if diagonal:
        precision = torch.diag(precision.diagonal())
    at = truths.naive_jacobian(network, data.validation.inputs)
    at = at.view(len(data.validation), classes, -1)
    return at @ precision.inverse() @ at.mT


@pytest.fixture(params=["regression", "classification"])
def setting(request, truths):
    if request.param == "regression":
        return truths.regression_data(), truths.mlp(3, 1), 0.3
    return truths.classification_data(), truths.mlp(3, 3), 1.0


@pytest.mark.parametrize("kind", [FunctionSpaceCovariance, ParameterSpaceCovariance])
@pytest.mark.parametrize("rows", [12, 200])
def test_full_laplace_of_a_linear_network_is_bayesian_linear_regression(truths, kind, rows):
    truth = truths.linear_gaussian(n=rows)
    found = covariance_of(kind, truth.network, truth.data, truth.prior_precision, truth.noise)
    variance = found.view(-1) + truth.noise**2
    expected = truth.predictive_variance(truth.data.validation.inputs)
    torch.testing.assert_close(variance, expected, rtol=0, atol=1e-6)


def test_the_method_predicts_the_bayesian_linear_regression_predictive(truths):
    truth = truths.linear_gaussian()
    method = LinearisedLaplace(noise_grid=(truth.noise,), prior_grid=(truth.prior_precision,))
    posterior = method.fit(truths.problem(), truth.data, truth.network, truths.context())
    prediction = posterior.predict(truth.data.validation.inputs)
    expected = truth.predictive_variance(truth.data.validation.inputs)
    torch.testing.assert_close(prediction.variance, expected, rtol=0, atol=1e-6)
    mean = truth.network(truth.data.validation.inputs).squeeze(-1)
    torch.testing.assert_close(prediction.mean, mean)


@pytest.mark.parametrize("prior", [1e-2, 1.0, 100.0])
def test_function_space_and_parameter_space_give_the_naive_posterior(setting, truths, prior):
    data, network, noise = setting
    expected = naive_covariance(truths, network, data, prior, noise)
    for kind in (FunctionSpaceCovariance, ParameterSpaceCovariance):
        found = covariance_of(kind, network, data, prior, noise)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("chunk_bytes", [1, 2**28])
def test_the_diagonal_structure_inverts_the_diagonal_in_chunks_of_any_size(
    setting, truths, monkeypatch, chunk_bytes
):
    monkeypatch.setattr(laplace_covariance, "CHUNK_BYTES", chunk_bytes)
    data, network, noise = setting
    expected = naive_covariance(truths, network, data, 0.5, noise, diagonal=True)
    found = covariance_of(DiagonalCovariance, network, data, 0.5, noise)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("chunk_bytes", [1, 2**28])
def test_parameter_space_works_in_chunks_of_any_size(setting, truths, monkeypatch, chunk_bytes):
    monkeypatch.setattr(laplace_covariance, "CHUNK_BYTES", chunk_bytes)
    data, network, noise = setting
    expected = naive_covariance(truths, network, data, 0.5, noise)
    found = covariance_of(ParameterSpaceCovariance, network, data, 0.5, noise)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


def test_the_cheaper_space_is_chosen(truths):
    data = truths.regression_data(n=30)
    wide = functional_covariance("full", truths.mlp(3, 1, (50,)), data.train, data.task)
    narrow = functional_covariance("full", truths.mlp(3, 1, (2,)), data.train, data.task)
    assert isinstance(wide, FunctionSpaceCovariance)
    assert isinstance(narrow, ParameterSpaceCovariance)


def test_the_root_of_the_softmax_hessian_squares_to_it():
    outputs = 3 * torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double()
    p = outputs.softmax(1)
    root = hessian_root(Task.CLASSIFICATION, outputs)
    expected = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    torch.testing.assert_close(root @ root.mT, expected)


def laplace_torch(network, data, structure, prior, noise=1.0, subset="all"):
    """laplace-torch's own functional variance, without the observation noise."""
    targets = data.train.targets
    if data.task is Task.REGRESSION:
        targets = targets.view(-1, 1)
    la = Laplace(
        network,
        data.task.value,
        subset_of_weights=subset,
        hessian_structure=structure,
        sigma_noise=noise,
        prior_precision=prior,
    )
    la.fit(DataLoader(TensorDataset(data.train.inputs, targets), batch_size=1000))
    return la._glm_predictive_distribution(data.validation.inputs)[1]


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_our_structures_agree_with_laplace_torchs(setting, structure):
    data, network, noise = setting
    kind = {"full": FunctionSpaceCovariance, "diag": DiagonalCovariance}[structure]
    found = covariance_of(kind, network, data, 0.5, noise)
    expected = laplace_torch(network, data, structure, 0.5, noise)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_last_layer_alone_is_uncertain_on_request(setting):
    data, network, noise = setting
    last = with_last_layer_trainable(network, data.train.inputs)
    found = covariance_of(ParameterSpaceCovariance, last, data, 0.5, noise)
    expected = laplace_torch(network, data, "full", 0.5, noise, subset="last_layer")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_kronecker_factors_of_a_linear_network_with_one_output_are_exact(truths):
    """One layer and one output: the Kronecker product of one factor with a scalar loses nothing."""
    truth = truths.linear_gaussian()
    found = covariance_of(
        KroneckerCovariance, truth.network, truth.data, truth.prior_precision, truth.noise
    )
    features = truth.features(truth.data.train.inputs)
    weights, bias = features[:, :-1], features[:, -1:]
    at = truth.features(truth.data.validation.inputs)
    # laplace-torch keeps weight and bias as separate blocks
    expected = 0
    for block, columns in ((weights, at[:, :-1]), (bias, at[:, -1:])):
        precision = block.mT @ block / truth.noise**2
        precision += truth.prior_precision * torch.eye(block.shape[1], dtype=torch.float64)
        expected = expected + ((columns @ precision.inverse()) * columns).sum(1)
    torch.testing.assert_close(found.view(-1), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("subset", ["all", "last_layer"])
@pytest.mark.parametrize("factored", [True, False])
def test_kronecker_covariances_are_those_of_laplace_torch(setting, monkeypatch, subset, factored):
    data, network, noise = setting
    expected = laplace_torch(network, data, "kron", 0.5, noise, subset)
    if subset == "last_layer":
        network = with_last_layer_trainable(network, data.train.inputs)
    if not factored:
        monkeypatch.setattr(laplace_covariance, "linearise", AutogradJacobian)
    covariance = KroneckerCovariance(network, data.train, data.task)
    found = covariance.at(data.validation.inputs, 0.5, noise)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", [FunctionSpaceCovariance, ParameterSpaceCovariance])
def test_a_float32_network_has_precise_covariances_with_little_noise_and_a_wide_prior(truths, kind):
    """λσ² = 1e-6, against eigenvalues up to 1e3: lost in the rounding of a float32 Gram matrix."""
    data, network = truths.regression_data(), truths.mlp(3, 1)
    expected = naive_covariance(truths, network, data, 0.01, 0.01)
    parts = (data.train, data.validation)
    splits = [Split(part.inputs.float(), part.targets.float()) for part in parts]
    single = type(data)(data.task, *splits)
    found = covariance_of(kind, copy.deepcopy(network).float(), single, 0.01, 0.01)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=0)


def test_a_network_that_cannot_run_in_float64_has_covariances_in_its_own_precision(truths):
    class Single(nn.Sequential):
        def forward(self, inputs):
            return super().forward(inputs.float())

    data = truths.regression_data()
    network = Single(*truths.mlp(3, 1)).float().eval()
    found = covariance_of(FunctionSpaceCovariance, network, data, 1.0, 1.0)
    expected = naive_covariance(truths, truths.mlp(3, 1), data, 1.0, 1.0)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_a_curvature_that_is_not_finite_is_an_error_that_says_so(truths, structure):
    data, network = truths.classification_data(), truths.mlp(3, 3)
    with torch.no_grad():
        network[2].weight[0, 0] = float("nan")
    method = LinearisedLaplace(structure=structure)
    with pytest.raises(DivergenceError, match="curvature is not finite"):
        method.fit(truths.problem(data.task), data, network, truths.context())


@pytest.mark.parametrize("chunk_bytes", [1, 2**28])
@pytest.mark.parametrize(
    "kind",
    [FunctionSpaceCovariance, ParameterSpaceCovariance, DiagonalCovariance, KroneckerCovariance],
)
def test_variances_of_a_grid_are_the_diagonals_of_the_covariances(
    setting, monkeypatch, kind, chunk_bytes
):
    monkeypatch.setattr(laplace_covariance, "CHUNK_BYTES", chunk_bytes)
    data, network, noise = setting
    covariance = kind(network, data.train, data.task)
    priors = (1e-2, 1.0, 100.0)
    found = covariance.variances(data.validation.inputs, priors, noise)
    for variances, prior in zip(found, priors, strict=True):
        blocks = covariance.at(data.validation.inputs, prior, noise)
        torch.testing.assert_close(variances, blocks.diagonal(dim1=1, dim2=2), rtol=1e-9, atol=0)


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("subset", ["all", "last_layer"])
def test_the_noise_and_the_prior_are_tuned_and_reported(setting, truths, structure, subset):
    data, network, _ = setting
    method = LinearisedLaplace(structure=structure, subset=subset, samples=50)
    context = truths.context()
    posterior = method.fit(truths.problem(data.task), data, network, context)
    assert posterior.tuned["prior_precision"] in method.prior_grid
    if data.task is Task.REGRESSION:
        assert posterior.tuned["noise"] in method.noise_grid
        assert context.grid_size == 20
        variance = posterior.predict(data.validation.inputs).variance
        assert (variance > posterior.tuned["noise"] ** 2).all()
    else:
        assert context.grid_size == 10
    assert context.tune_seconds > 0


def test_the_noise_maximises_the_likelihood_and_the_prior_minimises_the_ece(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    method = LinearisedLaplace()
    posterior = method.fit(truths.problem(), data, network, truths.context())
    errors = network(data.validation.inputs).detach().squeeze(-1) - data.validation.targets
    likelihoods = {
        noise: (-math.log(noise) - errors.square() / (2 * noise**2)).mean().item()
        for noise in method.noise_grid
    }
    noise = max(likelihoods, key=likelihoods.get)
    assert posterior.tuned["noise"] == noise
    mean = network(data.validation.inputs).detach().view(-1).numpy()
    scores = {}
    for prior in method.prior_grid:
        variance = naive_covariance(truths, network, data, prior, noise).view(-1) + noise**2
        scores[prior] = regression.ece(data.validation.targets.numpy(), mean, variance.numpy())
    assert posterior.tuned["prior_precision"] == min(scores, key=scores.get)


def test_the_noise_is_left_out_of_the_variance_on_request(truths):
    truth = truths.linear_gaussian()
    grids = {"noise_grid": (truth.noise,), "prior_grid": (truth.prior_precision,)}
    method = LinearisedLaplace(**grids, observation_noise=False)
    posterior = method.fit(truths.problem(), truth.data, truth.network, truths.context())
    found = posterior.predict(truth.data.validation.inputs).variance
    expected = truth.predictive_variance(truth.data.validation.inputs) - truth.noise**2
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert posterior.tuned["noise"] == truth.noise


def test_classification_samples_the_gaussian_logits(truths):
    data, network = truths.classification_data(), truths.mlp(3, 3)
    method = LinearisedLaplace(prior_grid=(0.5,), samples=20_000)
    posterior = method.fit(truths.problem(data.task), data, network, truths.context())
    prediction = posterior.predict(data.validation.inputs)
    covariance = naive_covariance(truths, network, data, 0.5)
    expected = covariance.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(prediction.logit_variance, expected, rtol=0.06, atol=0)
    outputs = network(data.validation.inputs).detach()
    root = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(3))
    draws = torch.randn(20_000, 20, 3, generator=torch.Generator().manual_seed(5)).double()
    samples = (outputs + torch.einsum("ncd,snd->snc", root, draws)).softmax(-1)
    # two independent means of 20,000 draws: 5 standard errors
    error = 5 * (2 * samples.var(0) / 20_000).sqrt()
    assert ((prediction.probabilities - samples.mean(0)).abs() < error).all()
    torch.testing.assert_close(prediction.variance, samples.var(0), rtol=0.15, atol=1e-5)


def test_grid_points_without_a_finite_score_are_skipped():
    scores = {1.0: math.nan, 2.0: math.inf, 3.0: 0.5, 4.0: 0.7}
    assert best_on_grid("lla.prior_grid", tuple(scores), scores.get) == 3.0


def test_a_grid_without_any_finite_score_is_an_error_that_names_it():
    with pytest.raises(TuningError, match=r"lla.prior_grid: no value of the grid \[1, 2\]"):
        best_on_grid("lla.prior_grid", (1.0, 2.0), lambda _: math.nan)


def test_a_log_grid_contains_its_ends():
    assert log_grid(1e-2, 1e2, 5) == pytest.approx((1e-2, 1e-1, 1, 10, 100))


def test_the_laplace_methods_leave_the_network_and_the_global_random_state_alone(setting, truths):
    data, network, _ = setting
    flags = [p.requires_grad for p in network.parameters()]
    state = torch.get_rng_state()
    for structure in ("full", "kron", "diag"):
        LinearisedLaplace(structure=structure, subset="last_layer", samples=10).fit(
            truths.problem(data.task), data, network, truths.context()
        )
    assert torch.equal(torch.get_rng_state(), state)
    assert [p.requires_grad for p in network.parameters()] == flags
    assert not network.training


class LargestStorage(TorchDispatchMode):
    """Notes the size of the largest storage of all tensors that operations return."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        result = function(*arguments, **(settings or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize(
    ("kind", "rows", "at"),
    [(ParameterSpaceCovariance, 2000, 2000), (FunctionSpaceCovariance, 40, 2000)],
)
def test_no_tensor_is_larger_than_a_chunk_or_the_curvature(truths, monkeypatch, kind, rows, at):
    """The Jacobians at 2,000 inputs, and in function space their products, take 20 times that."""
    data, network = truths.classification_data(n=rows), truths.mlp(3, 3, (20,))
    inputs = truths.rows(at, 3, 7)
    size = 3 * rows if kind is FunctionSpaceCovariance else linearised.num_parameters(network)
    curvature = 8 * size**2
    for module in (laplace_covariance, jacobian):
        monkeypatch.setattr(module, "CHUNK_BYTES", curvature)
    with LargestStorage() as largest:
        covariance = kind(network, data.train, data.task)
        covariance.variances(inputs, (0.1, 1.0))
        covariance.at(inputs[:500], 0.1)  # the result is no larger
    assert largest.bytes <= curvature
    assert 20 * largest.bytes < 8 * len(inputs) * 3 * size


@pytest.mark.slow
def test_diagonal_laplace_with_a_million_parameters_and_a_thousand_outputs_is_bounded_in_memory():
    """One input's Jacobian alone would take 4 GB; a chunk takes 256 MB."""
    from uqbench.memory import peak_host_bytes, reset_peak_host_bytes

    network = nn.Sequential(nn.Linear(20, 980), nn.Tanh(), nn.Linear(980, 1000)).eval()
    split = Split(torch.randn(2, 20), torch.tensor([3, 999]))
    linearise(network, split.inputs)
    reset_peak_host_bytes()
    before = peak_host_bytes()
    covariance = DiagonalCovariance(network, split, Task.CLASSIFICATION)
    blocks = covariance.at(split.inputs, 1.0)
    assert blocks.shape == (2, 1000, 1000)
    assert peak_host_bytes() - before < 2e9


def test_lla_last_is_the_papers_last_layer_kronecker_laplace(truths):
    """LLA* of Table 2: last layer, Kronecker, 1,000 samples, 20 prior precisions of 1e-2..1e2."""
    preset = LastLayerLaplace()
    assert (preset.structure, preset.subset, preset.samples) == ("kron", "last_layer", 1000)
    assert preset.prior_grid == pytest.approx(torch.logspace(-2, 2, 20).double().tolist())
    data, network = truths.classification_data(), truths.mlp(3, 3)
    spelt_out = LinearisedLaplace("kron", "last_layer", prior_grid=preset.prior_grid)
    found, expected = (
        method.fit(truths.problem(data.task), data, network, truths.context()).predict(
            data.validation.inputs
        )
        for method in (preset, spelt_out)
    )
    assert torch.equal(found.variance, expected.variance)


def test_a_chunk_has_room_for_the_activations_behind_a_last_layers_jacobian(truths, monkeypatch):
    """A row of a 3-7-2 network in float64: 2 outputs, 16 last-layer parameters, 7 + 7 + 2 units."""
    monkeypatch.setattr(laplace_covariance, "CHUNK_BYTES", 5 * 2 * (16 + 16) * 8)
    last = with_last_layer_trainable(truths.mlp(3, 2), truths.rows(9, 3, 0))
    assert laplace_covariance.rows_per_chunk(last, truths.rows(9, 3, 0)) == 5


def test_covariances_of_many_classes_are_formed_for_a_few_inputs_at_a_time(truths, monkeypatch):
    data, network = truths.classification_data(), truths.mlp(3, 3)
    method = LinearisedLaplace(samples=50)
    posterior = method.fit(truths.problem(data.task), data, network, truths.context())
    whole, sizes = posterior.predict(data.train.inputs), []
    kind = type(posterior._covariance)
    at = kind.at
    monkeypatch.setattr(
        kind,
        "at",
        lambda self, inputs, *rest: (sizes.append(len(inputs)), at(self, inputs, *rest))[1],
    )
    monkeypatch.setattr("uqbench.methods.lla.CHUNK_BYTES", 4 * 8 * 50 * 3)
    parts = posterior.predict(data.train.inputs)
    assert max(sizes) == 4
    torch.testing.assert_close(parts.probabilities, whole.probabilities, rtol=1e-10, atol=0)
    torch.testing.assert_close(parts.variance, whole.variance, rtol=1e-8, atol=1e-15)
