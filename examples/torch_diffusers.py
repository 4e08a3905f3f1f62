"""Make pictures with a `diffusers` pipeline whose UNet and VAE are compiled (needs the extra `torch`, and diffusers):
`python examples/torch_diffusers.py [MODEL] [PICTURE.png]`.

MODEL is the name or folder of a latent diffusion pipeline without prompts (`CompVis/ldm-celebahq-256`). Without it the
example makes a small one with random weights, whose pictures are noise. The picture that the compiled pipeline makes is
compared with the one of PyTorch's eager mode. A pipeline with prompts is compiled likewise: `pipe.unet`, `pipe.vae` and
`pipe.text_encoder`, or `pipe.transformer`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from diffusers import DDIMScheduler, LDMPipeline, UNet2DModel, VQModel

import mgx_numba.torch  # noqa: F401  (registers the backend where the package is not installed)

STEPS = 5


def small_pipeline() -> LDMPipeline:
    """A pipeline with random weights, for pictures of 32 by 32."""
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=16,
    )
    vae = VQModel(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=3,
        norm_num_groups=16,
    )
    return LDMPipeline(vqvae=vae, unet=unet, scheduler=DDIMScheduler())


def picture(pipe: Any) -> np.ndarray:
    """A picture that the pipeline makes of noise with a fixed seed, [height, width, 3] from 0 to 1."""
    noise = torch.Generator().manual_seed(1)
    return pipe(generator=noise, num_inference_steps=STEPS, output_type="numpy").images[0]


def main() -> None:
    pipe: Any = LDMPipeline.from_pretrained(sys.argv[1]) if len(sys.argv) > 1 else small_pipeline()
    pipe.set_progress_bar_config(disable=True)
    expected = picture(pipe)
    pipe.unet = torch.compile(pipe.unet, backend="mgx_numba")
    pipe.vqvae.decoder = torch.compile(pipe.vqvae.decoder, backend="mgx_numba")
    found = picture(pipe)
    print(f"a picture of {found.shape[1]} by {found.shape[0]} in {STEPS} steps")
    print(f"largest difference of a pixel from eager mode: {np.abs(found - expected).max():.0e}")
    if len(sys.argv) > 2:
        pipe.numpy_to_pil(found)[0].save(sys.argv[2])


if __name__ == "__main__":
    main()
