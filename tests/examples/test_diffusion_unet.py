"""The example on a UNet of diffusers: its loss starts at ln 2, and preferences move its samples."""

import math

import pytest

pytest.importorskip("diffusers")

from examples.diffusion_unet.train import (
    NUM_TIMESTEPS,
    brightness_to_the_right,
    build_unet,
    draw_pairs,
    learn_preferences,
)


def test_the_loss_starts_at_ln_2_and_falls() -> None:
    import torch
    from diffusers import DDPMScheduler

    torch.manual_seed(0)
    scheduler = DDPMScheduler(NUM_TIMESTEPS, beta_schedule="squaredcos_cap_v2")
    first, last = learn_preferences(build_unet(), scheduler, 25)
    assert first == pytest.approx(math.log(2), abs=1e-5)
    assert last < first


def test_the_brighter_image_is_the_chosen_one() -> None:
    from diffusers import DDPMScheduler

    pairs = draw_pairs(DDPMScheduler(NUM_TIMESTEPS), 0)
    assert (brightness_to_the_right(pairs.chosen) >= brightness_to_the_right(pairs.rejected)).all()
