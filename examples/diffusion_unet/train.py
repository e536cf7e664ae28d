"""Diffusion DPO on a UNet of diffusers: images that are brighter on the right are preferred.

Run with `python -m examples.diffusion_unet.train` after `pip install diffusers`. Nothing is
downloaded: the UNet learns one-channel images of 8 x 8 first, each a bright column, and then
preferences between pairs of them, with the project's own objective.

Shapes: `N` images, `P` pairs; an image is [1, 8, 8].
"""

import copy

import torch
from diffusers import DDPMScheduler, UNet2DModel
from torch import Tensor
from torch.nn.functional import mse_loss

from configs.dpo import Dpo
from objectives.diffusion_dpo import build_objective
from objectives.pairs import DiffusionBatch

SIZE = 8
NUM_TIMESTEPS = 50
BATCH = 32
COLUMNS = torch.arange(SIZE, dtype=torch.float32)


class UNetDenoiser:
    """Calls a UNet of diffusers the way a diffusion objective does."""

    def __init__(self, unet: UNet2DModel) -> None:
        self.unet = unet

    def predict(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        """Return the predicted noise [N, 1, 8, 8]."""
        return self.unet(noisy, timesteps).sample


def build_unet() -> UNet2DModel:
    """Return a UNet of about 40,000 parameters."""
    return UNet2DModel(
        sample_size=SIZE,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )


def draw_images(num: int) -> Tensor:
    """Return images with one bright column each, anywhere: [N, 1, 8, 8], from -1 to 1."""
    centre_N1 = torch.rand(num, 1) * (SIZE - 1)
    profile_NW = 2 * torch.exp(-((COLUMNS - centre_N1) ** 2)) - 1
    return profile_NW[:, None, None, :].expand(num, 1, SIZE, SIZE).contiguous()


def brightness_to_the_right(images: Tensor) -> Tensor:
    """Return how much brighter the right half is than the left one: [N]."""
    left, right = images.chunk(2, dim=-1)
    return (right - left).mean((1, 2, 3))


def learn_images(unet: UNet2DModel, scheduler: DDPMScheduler, num_steps: int) -> float:
    """Train on denoising alone; return the last loss."""
    optimizer = torch.optim.AdamW(unet.parameters(), lr=2e-3)
    loss = torch.tensor(float("nan"))
    for _ in range(num_steps):
        clean, timesteps = draw_images(BATCH), torch.randint(NUM_TIMESTEPS, (BATCH,))
        noise = torch.randn_like(clean)
        noisy = scheduler.add_noise(clean, noise, timesteps)
        loss = mse_loss(unet(noisy, timesteps).sample, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def draw_pairs(scheduler: DDPMScheduler, first_id: int) -> DiffusionBatch:
    """Return pairs of images, the one that is brighter on the right preferred, with their noise."""
    one, other = draw_images(BATCH), draw_images(BATCH)
    is_first = brightness_to_the_right(one) > brightness_to_the_right(other)
    is_first = is_first[:, None, None, None]
    timesteps = torch.randint(NUM_TIMESTEPS, (BATCH,))
    alpha_bar = scheduler.alphas_cumprod[timesteps]
    return DiffusionBatch(
        pair_ids=torch.arange(first_id, first_id + BATCH),
        chosen=torch.where(is_first, one, other),
        rejected=torch.where(is_first, other, one),
        noise=torch.randn_like(one),
        timesteps=timesteps,
        signal=alpha_bar.sqrt(),
        spread=(1 - alpha_bar).sqrt(),
    )


def learn_preferences(
    unet: UNet2DModel, scheduler: DDPMScheduler, num_steps: int
) -> tuple[float, float]:
    """Train on pairs against a frozen copy; return the first and the last loss."""
    reference = copy.deepcopy(unet).requires_grad_(requires_grad=False)
    objective = build_objective(
        Dpo(beta=50.0), prediction="noise", reference=UNetDenoiser(reference)
    )
    optimizer = torch.optim.AdamW(unet.parameters(), lr=3e-4)
    losses = []
    for step in range(num_steps):
        batch = draw_pairs(scheduler, first_id=step * BATCH)
        loss, _ = objective.fn(UNetDenoiser(unet), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses[0], losses[-1]


@torch.no_grad()
def sample(unet: UNet2DModel, scheduler: DDPMScheduler, num: int) -> Tensor:
    """Return images sampled by DDPM: [N, 1, 8, 8]."""
    images = torch.randn(num, 1, SIZE, SIZE)
    for timestep in scheduler.timesteps:
        images = scheduler.step(unet(images, timestep).sample, timestep, images).prev_sample
    return images


def main(num_warm_start: int = 400, num_steps: int = 250) -> tuple[float, float]:
    """Train, and return the share of samples that are brighter on the right, before and after."""
    torch.manual_seed(0)
    unet = build_unet()
    scheduler = DDPMScheduler(NUM_TIMESTEPS, beta_schedule="squaredcos_cap_v2")
    scheduler.set_timesteps(NUM_TIMESTEPS)
    learn_images(unet, scheduler, num_warm_start)
    before = (brightness_to_the_right(sample(unet, scheduler, 256)) > 0).float().mean().item()
    first, last = learn_preferences(unet, scheduler, num_steps)
    after = (brightness_to_the_right(sample(unet, scheduler, 256)) > 0).float().mean().item()
    print(f"loss {first:.3f} -> {last:.3f}; brighter on the right {before:.2f} -> {after:.2f}")
    return before, after


if __name__ == "__main__":
    main()
