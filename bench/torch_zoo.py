"""PyTorch models of `bench.torch_sweep`: their names, and modules with random weights and example inputs by name.

Images go through networks of timm and torchvision at their own sizes. Configurations of transformers are narrow: 2
layers of width 128. The packages belong to an environment of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.torch_networks import ALL_NETWORKS
from bench.torch_others import OTHERS

__all__ = ["FAMILIES", "build", "names"]

Case = tuple[nn.Module, dict[str, Any]]
"""A module in evaluation mode, and its arguments by name; arguments by position have numbers as names."""

TIMM = (
    "resnet18 resnet50 resnext50_32x4d seresnet50 resnest14d densenet121 vgg11_bn mobilenetv2_100 mobilenetv3_large_100"
    " mobilenetv4_conv_small efficientnet_b0 efficientnetv2_rw_t tf_efficientnet_lite0 mnasnet_100 ghostnet_100"
    " regnetx_008 regnety_008 convnext_tiny convnextv2_nano repvgg_a0 vit_tiny_patch16_224 vit_small_patch16_224"
    " deit3_small_patch16_224 swin_tiny_patch4_window7_224 mixer_s32_224 eva02_tiny_patch14_224 poolformer_s12"
    " levit_128s mobilevit_s xcit_nano_12_p16_224 cait_xxs24_224 edgenext_small hrnet_w18_small dla34"
).split()
TORCHVISION = "squeezenet1_1 shufflenet_v2_x1_0 googlenet alexnet lraspp_mobilenet_v3_large fcn_resnet50".split()
ENCODERS = (
    "bert roberta distilbert albert electra deberta deberta-v2 mpnet xlm-roberta mobilebert squeezebert nystromformer"
    " fnet ernie roformer modernbert"
).split()
DECODERS = (
    "gpt2 gpt_neo gpt_neox gptj opt bloom llama mistral qwen2 qwen3 gemma gemma2 phi phi3 falcon stablelm olmo mixtral"
    " cohere"
).split()
SEQUENCES = "t5 bart marian".split()
IMAGES = "vit dinov2".split()

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "embed_dim"), 128),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    "num_decoder_layers": 2,
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "d_kv": 32,
    "rotary_dim": 16,
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim"), 256),
    "vocab_size": 1000,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "use_cache": False,
}
"""Values for those of these fields that a configuration has."""
KEPT: dict[str, frozenset[str]] = {
    "mobilebert": frozenset(("embedding_size", "hidden_size", "intermediate_size")),
    "squeezebert": frozenset(("embedding_size", "hidden_size", "intermediate_size", "num_attention_heads")),
    "albert": frozenset(("embedding_size",)),
    "falcon": frozenset(("head_dim",)),
}
"""Fields that keep their values, on which others depend."""
EXTRA: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "roformer": {"embedding_size": 128},
    "mixtral": {"num_local_experts": 4},
    "phi": {"num_key_value_heads": 4},
    "modernbert": {"cls_token_id": 1, "sep_token_id": 2},
}
LENGTH = 64
"""Tokens of a sequence."""


def names() -> list[str]:
    """Return the names of all models, each as ``family/model``."""
    return [f"{family}/{name}" for family, (members, _) in FAMILIES.items() for name in members]


def build(name: str) -> Case:
    """Return a model and its arguments; weights and inputs are random numbers of a fixed seed.

    Raises:
        KeyError: there is no such model.
    """
    family, _, model = name.partition("/")
    torch.manual_seed(0)
    module, arguments = FAMILIES[family][1](model)
    return module.eval(), arguments


def _timm(name: str) -> Case:
    import timm

    module = timm.create_model(name, pretrained=False)
    x = torch.randn(1, *module.default_cfg["input_size"])
    _settle(module, x)
    return module, {"0": x}


def _torchvision(name: str) -> Case:
    import torchvision.models as models

    backbone = {"weights_backbone": None} if name.startswith(("lraspp", "fcn")) else {}
    module = models.get_model(name, weights=None, **backbone)
    x = torch.randn(1, 3, 224, 224)
    _settle(module, x)
    return module, {"0": x}


def _settle(module: nn.Module, x: torch.Tensor) -> None:
    """Give weights that are all zero random values, and batch norms statistics that keep the magnitude of values.

    With others, values grow from layer to layer until rounding errors decide gates of attention. The channels of a
    layer have one variance, its mean square for ``x``: smaller ones would enlarge rounding errors.
    """

    def measure(norm: Any, inputs: tuple[torch.Tensor]) -> None:
        square = inputs[0].square().mean().clamp(min=0.01)
        norm.running_var, norm.running_mean = square.repeat(norm.num_features), norm.running_mean * square.sqrt()

    for weight in module.parameters():
        if weight.dim() > 1 and not weight.any():
            nn.init.normal_(weight, std=0.02)
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.normal_(norm.running_mean, std=0.1)
    hooks = [norm.register_forward_pre_hook(measure) for norm in norms]
    with torch.no_grad():
        module.eval()(x)
    for hook in hooks:
        hook.remove()


def _transformer(name: str) -> Case:
    import transformers

    known = transformers.AutoConfig.for_model(name)
    fields = {k: v for k, v in SMALL.items() if hasattr(known, k) and k not in KEPT.get(name, ())}
    config = transformers.AutoConfig.for_model(name, **{**fields, **EXTRA.get(name, {})})
    ids = torch.randint(3, 1000, (1, LENGTH))
    if name in DECODERS:
        return transformers.AutoModelForCausalLM.from_config(config), {"input_ids": ids, "use_cache": False}
    module = transformers.AutoModel.from_config(config)
    if name in IMAGES:
        return module, {"pixel_values": torch.randn(1, 3, 224, 224)}
    if name in SEQUENCES:
        return module, {"input_ids": ids, "decoder_input_ids": ids[:, :16], "use_cache": False}
    return module, {"input_ids": ids, **({} if name == "fnet" else {"attention_mask": torch.ones_like(ids)})}


def _network(name: str) -> Case:
    module, inputs = ALL_NETWORKS[name]()
    return module, {str(k): x for k, x in enumerate(inputs)}


FAMILIES: dict[str, tuple[list[str], Callable[[str], Case]]] = {
    "timm": (TIMM, _timm),
    "torchvision": (TORCHVISION, _torchvision),
    "transformers": ([*ENCODERS, *DECODERS, *SEQUENCES, *IMAGES], _transformer),
    "others": (list(OTHERS), lambda name: OTHERS[name]()),
    "networks": (list(ALL_NETWORKS), _network),
}
