"""Networks: built from a specification, initialised from a generator, copied with other outputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from uqbench import architectures
from uqbench.errors import UnsupportedError
from uqbench.problems import NetworkSpec
from uqbench.streamed import Inputs, in_batches


@contextmanager
def isolated_randomness(seed: int) -> Iterator[None]:
    """Seed torch's global generators inside, and restore their states afterwards.

    For code that draws from the global generators and takes no generator of its own (dropout,
    ``reset_parameters``).
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def build_network(spec: NetworkSpec, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return an untrained network for inputs of ``shape``; ``initialise`` draws its parameters.

    Raises UsageError if the architecture does not take inputs of this shape.
    """
    with isolated_randomness(0):
        return architectures.build(spec, shape, outputs)


def initialise(network: nn.Module, spec: NetworkSpec | None, seed: int) -> nn.Module:
    """Draw the parameters of ``network`` afresh, in place, from ``seed`` alone.

    Every module that has ``reset_parameters`` is reset; the weights and biases of linear and
    convolution layers are then drawn as ``spec`` says. The draws are made in float64 on the CPU
    and rounded to the network's dtype, so that a seed means the same network in every dtype.
    Frozen parameters, and the buffers beside them, stay as they are.

    Raises UnsupportedError for a module with trainable parameters that nothing would draw.
    """
    draws = copy.deepcopy(network).double().cpu()
    with isolated_randomness(seed):
        for name, module in draws.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
            elif any(p.requires_grad for p in module.parameters(recurse=False)):
                raise UnsupportedError(
                    f"{described(name, module)} holds parameters but has no reset_parameters() to "
                    "initialise them; give it one, or freeze them"
                )
            if spec is not None and isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
                _draw_weight(module.weight, spec.weight_init)
                if module.bias is not None:
                    _draw_bias(module.bias, spec.bias_init)
    network.load_state_dict(network.state_dict() | _redrawn_state(draws))
    return network


def _redrawn_state(network: nn.Module) -> dict[str, Tensor]:
    """The state without frozen parameters and without the buffers of modules that are frozen."""
    state = network.state_dict()
    for prefix, module in network.named_modules():
        own = dict(module.named_parameters(recurse=False))
        kept = [name for name, parameter in own.items() if not parameter.requires_grad]
        if own and len(kept) == len(own):
            kept += [name for name, _ in module.named_buffers(recurse=False)]
        for name in kept:
            state.pop(f"{prefix}.{name}" if prefix else name, None)
    return state


def _draw_weight(weight: Tensor, scheme: str) -> None:
    if scheme == "xavier_normal":
        nn.init.xavier_normal_(weight)
    elif scheme == "xavier_uniform":
        nn.init.xavier_uniform_(weight)
    elif scheme == "kaiming_normal":
        nn.init.kaiming_normal_(weight)
    elif scheme == "standard_normal":
        nn.init.normal_(weight)


def _draw_bias(bias: Tensor, scheme: str) -> None:
    if scheme == "zeros":
        nn.init.zeros_(bias)
    elif scheme == "standard_normal":
        nn.init.normal_(bias)


def prior_variances(network: nn.Module, spec: NetworkSpec | None) -> dict[str, float]:
    """The variance with which ``initialise`` draws each trainable parameter, by name.

    0 for parameters whose initial value is fixed, as BatchNorm's are. Sources: Glorot & Bengio
    2010, He et al. 2015; torch's own default is uniform on ±fan_in^(−½).

    Raises UnsupportedError for a module whose initial distribution is not known.
    """
    variances = {}
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        prefix, _, own = name.rpartition(".")
        module = network.get_submodule(prefix)
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            variances[name] = _layer_variances(module, spec or NetworkSpec())[own]
        elif isinstance(module, nn.modules.batchnorm._NormBase | nn.LayerNorm | nn.GroupNorm):
            variances[name] = 0.0
        else:
            raise UnsupportedError(
                f"{described(prefix, module)}: the variance of its initialisation is not known; "
                "build the network from linear, convolution and normalisation layers"
            )
    return variances


def _layer_variances(layer: nn.Module, spec: NetworkSpec) -> dict[str, float]:
    fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(layer.weight)
    xavier, default = 2 / (fan_in + fan_out), 1 / (3 * fan_in)
    weight = {
        "xavier_normal": xavier,
        "xavier_uniform": xavier,
        "kaiming_normal": 2 / fan_in,
        "standard_normal": 1.0,
        "default": default,
    }
    bias = {"zeros": 0.0, "standard_normal": 1.0, "default": default}
    return {"weight": weight[spec.weight_init], "bias": bias[spec.bias_init]}


def described(name: str, module: nn.Module) -> str:
    """How messages name a module."""
    where = f"layer '{name}'" if name else "the network"
    return f"{where} ({type(module).__name__})"


@torch.no_grad()
def last_linear(network: nn.Module, inputs: Tensor) -> tuple[str, nn.Linear]:
    """The name and the module of the linear layer that a forward pass uses last.

    inputs: (N, ...), of which one is tried out in eval mode. Raises UnsupportedError if there is
    no linear layer.
    """
    probe, used = copy.deepcopy(network).eval(), []
    for name, module in probe.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda *_, name=name: used.append(name))
    with isolated_randomness(0):
        probe(inputs[:1])
    if not used:
        raise UnsupportedError(
            f"the network ({type(network).__name__}) uses no linear layer; this method needs a "
            "linear output layer"
        )
    return used[-1], network.get_submodule(used[-1])


def with_outputs(network: nn.Module, outputs: int, inputs: Tensor) -> nn.Module:
    """Return a copy of ``network`` with ``outputs`` outputs: with another last linear layer.

    inputs: (N, ...), of which a few are tried out. Raises UnsupportedError if the network has no
    linear layer to replace, or if that layer alone does not give the network's outputs.
    """
    copied = copy.deepcopy(network)
    name, last = last_linear(copied, inputs)
    if last.out_features == outputs:
        return copied
    with isolated_randomness(0):
        replacement = nn.Linear(last.in_features, outputs, bias=last.bias is not None)
    replacement = replacement.to(device=last.weight.device, dtype=last.weight.dtype)
    if not name:
        return replacement
    parent, _, child = name.rpartition(".")
    setattr(copied.get_submodule(parent), child, replacement)
    _require_outputs(copied, name, outputs, inputs[:3])
    return copied


@torch.no_grad()
def _require_outputs(network: nn.Module, name: str, outputs: int, inputs: Tensor) -> None:
    """Raise UnsupportedError unless the layer ``name`` alone gives the network's outputs."""
    silenced = copy.deepcopy(network).eval()
    for parameter in silenced.get_submodule(name).parameters():
        parameter.zero_()
    try:
        with isolated_randomness(0):
            seen = silenced(inputs)
        alone = seen.shape == (len(inputs), outputs) and torch.equal(seen, seen[:1].expand_as(seen))
    except RuntimeError:  # what comes after does not fit
        alone = False
    if not alone:
        layer = described(name, network.get_submodule(name))
        raise UnsupportedError(
            f"{layer} cannot be given {outputs} outputs: it must be the network's only output "
            "layer, without a layer of that width or a skip connection after it"
        )


def aliases(network: nn.Module) -> dict[str, str]:
    """Names of tied parameters in other modules than the first -> their first name.

    A module that is registered twice has one name here.
    """
    first, others = {}, {}
    for name, parameter in network.named_parameters():
        first[parameter] = name
    for prefix, module in network.named_modules():
        for own, parameter in module._parameters.items():
            name = f"{prefix}.{own}" if prefix else own
            if parameter is not None and first[parameter] != name:
                others[name] = first[parameter]
    return others


def call_with(
    network: nn.Module, state: Mapping[str, Tensor], tied: Mapping[str, str], inputs: Tensor
) -> Tensor:
    """Outputs (N, C) with ``state`` in place of the network's own parameters and buffers, by name.

    tied: the network's :func:`aliases`. (torch's way to tie them leaves a module that is registered
    under two names changed for good: it is swapped twice and restored once.)
    """
    also = {alias: state[name] for alias, name in tied.items() if name in state}
    return as_matrix(functional_call(network, {**state, **also}, (inputs,), tie_weights=False))


def require_no_recurrence(network: nn.Module) -> None:
    """Raise UnsupportedError for trainable recurrent layers, which torch cannot run under vmap."""
    for name, module in network.named_modules():
        own = module.parameters(recurse=False)
        if isinstance(module, nn.RNNBase) and any(p.requires_grad for p in own):
            raise UnsupportedError(
                f"{described(name, module)} is recurrent: torch cannot linearise it, nor run "
                "several of it as one program; use another kind of layer"
            )


def as_matrix(outputs: Tensor) -> Tensor:
    """Return network outputs as (N, C); a network that returns (N,) has one output."""
    if not isinstance(outputs, Tensor):
        kind = type(outputs).__name__
        raise UnsupportedError(f"the network must return a tensor (N,) or (N, C), not a {kind}")
    if outputs.ndim == 1:
        return outputs.unsqueeze(-1)
    if outputs.ndim != 2:
        shape = tuple(outputs.shape)
        raise UnsupportedError(f"the network must return (N,) or (N, C), it returned {shape}")
    return outputs


@torch.no_grad()
def outputs_at(network: nn.Module, inputs: Inputs) -> Tensor:
    """The network's outputs (N, C) at ``inputs`` (N, ...), a batch at a time."""
    return torch.cat([as_matrix(network(batch)) for batch in in_batches(inputs)])


def trainable(network: nn.Module) -> dict[str, Tensor]:
    """The parameters θ: those that require a gradient, detached, by name; tied ones once.

    Raises UnsupportedError if there are none.
    """
    parameters = {n: p.detach() for n, p in network.named_parameters() if p.requires_grad}
    if not parameters:
        raise UnsupportedError("the network has no trainable parameters")
    return parameters


def is_tied(network: nn.Module) -> bool:
    """Whether a parameter of ``network`` is used under more than one name."""
    names = [name for name, _ in network.named_parameters(remove_duplicate=False)]
    return len(names) != len(list(network.parameters()))


def dtype_of(network: nn.Module) -> torch.dtype:
    """The dtype of the network's first parameter."""
    return next(network.parameters()).dtype
