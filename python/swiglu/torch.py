"""The sublayer as a torch module, and inside the models of `transformers`. For inference: it computes no gradients.

    patched = swiglu.torch.patch(model)     # every Llama-shaped MLP of the model
    model.generate(...)
    patched.undo()
"""
from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
import typing

import torch

from ._errors import error_of
from .layer import FeedForward

#: Classes of transformers whose forward is down(silu(gate(x)) * up(x)), and whether gate and up are one matrix.
KNOWN = {"LlamaMLP": False, "MistralMLP": False, "Qwen2MLP": False, "Qwen3MLP": False, "Phi3MLP": True}
#: Classes of transformers whose norm and residual `fuse` takes over, where their forward is the one expected.
FUSABLE = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
_SILU = ("SiLU", "SiLUActivation")


class SwiGLU(torch.nn.Module):
    """down @ (silu(gate @ x) * (up @ x)) for x [..., dim] on the CPU.

    gate and up: [hidden, dim]; down: [dim, hidden]; norm: [dim], or None for forward() only. Weights are copied into the
    packed layer, `self.layer`: the module has no parameters. Options are those of swiglu.FeedForward.
    """

    def __init__(self, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, *, norm: torch.Tensor | None = None,
                 eps: float = 1e-5, **options: typing.Any) -> None:
        super().__init__()
        weights = [None if w is None else w.detach() for w in (gate, up, down, norm)]
        self.layer = FeedForward.from_weights(*weights[:3], norm=weights[3], eps=eps, **options)

    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Raises swiglu.Error for a tensor that requires a gradient, or is not on the CPU."""
        return self.layer.forward(x)

    @torch.compiler.disable
    def block(self, h: torch.Tensor) -> torch.Tensor:
        """h + forward(norm(h)), in one call."""
        return self.layer.block(h)

    def extra_repr(self) -> str:
        return repr(self.layer)

    def _save_to_state_dict(self, destination: typing.Any, prefix: str, keep_vars: bool) -> None:
        raise error_of("unsupported", f"{prefix.rstrip('.')}: the weights are packed: undo the patch before saving")

    def _load_from_state_dict(self, state_dict: typing.Any, prefix: str, *rest: typing.Any) -> None:
        raise error_of("unsupported", f"{prefix.rstrip('.')}: the weights are packed: undo the patch before loading")


class Patch:
    """What patch() replaced. A context manager, too, that undoes it at its end."""

    def __init__(self) -> None:
        self.names: list[str] = []  #: of the modules that were replaced
        self.packed_bytes = 0  #: of weights in memory
        self._undo: list[typing.Callable[[], object]] = []
        self._kept = True

    def undo(self) -> None:
        """Puts the model's own modules back. Does nothing the second time."""
        if self._undo and not self._kept:
            raise error_of("usage", "undo: the model's own weights were not kept (patch(..., keep=False))")
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kept:
            self.undo()

    def __repr__(self) -> str:
        return f"<swiglu.torch.Patch of {len(self.names)} modules, {self.packed_bytes / 1e6:.1f} MB>"


def patch(model: torch.nn.Module, *, fuse: bool = False, keep: bool = True, leave: typing.Sequence[str] = (),
          **options: typing.Any) -> Patch:
    """Replaces every Llama-shaped MLP of a model of transformers: LlamaMLP, MistralMLP, Qwen2MLP, Qwen3MLP, Phi3MLP.

    A model with a feed-forward of another class is refused by name, before anything is replaced; `leave` names classes
    that shall stay as they are. fuse: norm and residual of the decoder layers around them, too. keep=False: the
    model's own weights are given up while packing, for models of which memory holds one only; then there is no undo().
    Options are those of swiglu.FeedForward: compute, storage, isa, pool.
    """
    found = _find(model, (leave,) if isinstance(leave, str) else tuple(leave))
    norms = [_norm_of(name, parent) if fuse else (None, 1e-5) for name, parent, _, _ in found]
    packed: dict[tuple[int, int, float], SwiGLU] = {}  # one MLP in two places may have two norms
    patch = Patch()
    try:
        for (name, parent, child, mlp), (norm, eps) in zip(found, norms):
            patch.names.append(name)
            if getattr(parent, child) is not mlp:
                continue  # its decoder layer is in two places
            key = (id(mlp), id(norm), eps)
            if key not in packed:
                packed[key] = SwiGLU(*_weights(name, mlp), norm=norm, eps=eps, **options)
                patch.packed_bytes += packed[key].layer.packed_bytes
            setattr(parent, child, packed[key])
            patch._undo.append(lambda parent=parent, child=child, mlp=mlp: setattr(parent, child, mlp))
            if fuse:
                parent.forward = types.MethodType(_fused_forward, parent)
                patch._undo.append(lambda parent=parent: delattr(parent, "forward"))
            if not keep:
                used = {id(parameter) for parameter in model.parameters()}  # by what is still to come, too
                for parameter in (p for p in mlp.parameters() if id(p) not in used):
                    parameter.data = parameter.data.new_empty(0)
    except BaseException:
        if keep:
            patch.undo()
        raise
    patch._kept = keep
    return patch


def _find(model: torch.nn.Module, leave: tuple[str, ...]) -> list[tuple[str, typing.Any, str, torch.nn.Module]]:
    """(name, parent, the parent's name for it, module) of each MLP to be replaced; all were looked at."""
    found, refused = [], []
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, module in modules.items():
        kind = type(module)
        if kind.__name__ in leave or isinstance(module, SwiGLU):
            continue
        if kind.__name__ in KNOWN and kind.__module__.startswith("transformers.models."):
            if not name:
                raise error_of("usage", f"patch: expected a model around a {kind.__name__}, found that alone: "
                                        "make a swiglu.torch.SwiGLU of its weights")
            parent, _, child = name.rpartition(".")
            fault = _fault(module)
            if fault:
                refused.append(f"{name} ({kind.__name__}): {fault}")
            found.append((name, modules[parent], child, module))
        elif _looks_like_one(module):
            refused.append(f"{name or 'the model'}: {kind.__name__} of {kind.__module__} is none of "
                           f"{', '.join(KNOWN)}; leave=({kind.__name__!r},) lets it be")
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise error_of("unsupported", f"patch: {refused[0]}{more}")
    if not found and any(isinstance(module, SwiGLU) for module in modules.values()):
        raise error_of("usage", "patch: this model is patched already")
    if not found:
        raise error_of("unsupported", f"patch: {type(model).__name__} has no feed-forward of {', '.join(KNOWN)}")
    return found


def _looks_like_one(module: torch.nn.Module) -> bool:
    if re.search(r"(MLP|Mlp|FeedForward|FFN|MoE|Moe|MoeBlock|Experts)$", type(module).__name__):
        return True
    return any(hasattr(module, name) for name in ("down_proj", "gate_up_proj", "w2"))


def _linears(mlp: typing.Any) -> list[typing.Any]:
    names = ("gate_up_proj", "down_proj") if KNOWN[type(mlp).__name__] else ("gate_proj", "up_proj", "down_proj")
    return [getattr(mlp, name) for name in names]


def _fault(mlp: typing.Any) -> str:
    """Why this one cannot be computed by us; empty if it can."""
    activation = mlp.activation_fn if KNOWN[type(mlp).__name__] else mlp.act_fn
    if type(activation).__name__ not in _SILU:
        return f"its activation is {type(activation).__name__}, expected SiLU"
    for linear in _linears(mlp):
        if type(linear) is not torch.nn.Linear:
            return f"a matrix is a {type(linear).__name__} of {type(linear).__module__}, expected torch.nn.Linear"
        if linear.bias is not None:
            return "a matrix has a bias"
        if linear.weight.device.type != "cpu":
            return f"its weights are on {linear.weight.device}, expected the CPU"
    for module in (mlp, activation, *_linears(mlp)):
        if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
            return "it has hooks, which would not be called any more"
    return ""


def _weights(name: str, mlp: typing.Any) -> list[torch.Tensor]:
    if not KNOWN[type(mlp).__name__]:
        return [linear.weight for linear in _linears(mlp)]
    both, down = (linear.weight for linear in _linears(mlp))
    if both.shape[0] % 2:
        raise error_of("shape", f"{name}: gate_up_proj has {both.shape[0]} rows, expected an even number")
    return [*both.chunk(2), down]


def _norm_of(name: str, layer: typing.Any) -> tuple[torch.Tensor, float]:
    """The norm before the MLP `name` of a decoder layer that is as plain as fusing needs."""
    kind = type(layer)
    where = f"patch: {name.rpartition('.')[0]} ({kind.__name__})"
    if kind.__name__ not in FUSABLE or not kind.__module__.startswith("transformers.models."):
        raise error_of("unsupported", f"{where}: fuse knows {', '.join(FUSABLE)}")
    if not _is_plain(kind) or "forward" in layer.__dict__:
        raise error_of("unsupported", f"{where}: its forward is not the plain one, so norm and residual stay outside: "
                                      "patch without fuse")
    norm = layer.post_attention_layernorm
    hooked = norm._forward_hooks or norm._forward_pre_hooks or "forward" in norm.__dict__
    expected = kind.__name__.replace("DecoderLayer", "RMSNorm")  # others add 1 to the weight, or name eps otherwise
    if type(norm).__name__ != expected or type(norm).__module__ != kind.__module__ or hooked:
        raise error_of("unsupported", f"{where}: its norm is {type(norm).__name__}, expected {expected} without hooks")
    return norm.weight, float(norm.variance_epsilon)


def _is_plain(kind: type) -> bool:
    """Whether forward is: norm, attention, residual, norm, MLP, residual, with keywords handed on as they are."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(kind.forward))))
    except (OSError, TypeError, SyntaxError):
        return False
    if not isinstance(tree.body[0], ast.FunctionDef):
        return False
    body = [s for s in tree.body[0].body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    for call in ast.walk(tree):  # position_ids=position_ids, **kwargs: what is handed on does not matter
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "self.self_attn":
            own = [k for k in call.keywords if k.arg == "hidden_states"]
            if any(k.arg is not None and ast.unparse(k.value) != k.arg for k in call.keywords):
                return False
            call.keywords = own
    return [ast.unparse(s) for s in body] == [
        "residual = hidden_states",
        "hidden_states = self.input_layernorm(hidden_states)",
        "hidden_states, _ = self.self_attn(hidden_states=hidden_states)",
        "hidden_states = residual + hidden_states",
        "residual = hidden_states",
        "hidden_states = self.post_attention_layernorm(hidden_states)",
        "hidden_states = self.mlp(hidden_states)",
        "hidden_states = residual + hidden_states",
        "return hidden_states",
    ]


def _fused_forward(layer: typing.Any, hidden_states: torch.Tensor, **keywords: typing.Any) -> torch.Tensor:
    """Of a decoder layer; bound to it as a method, so that a deep copy's is bound to the copy."""
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **keywords)
    return layer.mlp.block(hidden_states + attended)
