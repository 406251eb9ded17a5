"""CoAtNet-CIFAR of the asymmetric-training paper (tables 24 and 25), from timm's own blocks."""

from timm.layers import LayerNorm2d, calculate_drop_path_rates
from timm.models.maxxvit import MaxxVitStage, MbConvBlock, TransformerBlock2d
from torch import nn

# Stage: kind of block (convolution or transformer), channels, blocks, stride. Table 25.
STAGES = {
    "s1": ("C", 96, 2, 2),
    "s2": ("C", 128, 2, 2),
    "s3": ("T", 256, 3, 1),
    "s4": ("T", 384, 2, 2),
}


def coatnet(
    classes: int = 100, *, image: int = 32, channels: int = 3, drop_path: float = 0.1
) -> nn.Sequential:
    """A convolution, two stages of MBConv blocks, two of transformer blocks: `s0` to `s4`.

    The paper gives blocks, widths and resolutions; the rest (expansion 4, squeeze-excitation,
    heads of 32, relative position biases, initialisation) is timm's CoAtNet-0. `image` is a
    multiple of 8.
    """
    width = 64
    size = image

    model = nn.Sequential()
    stem = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.GELU()]
    model.add_module("s0", nn.Sequential(*stem))

    depths = [n_blocks for _, _, n_blocks, _ in STAGES.values()]
    drop_rates = calculate_drop_path_rates(drop_path, depths, stagewise=True)
    for stage_rates, (name, stage) in zip(drop_rates, STAGES.items(), strict=True):
        block_kind, out_width, n_blocks, stride = stage
        size //= stride

        # timm's blocks change the width only where they halve the map; table 25's S3 does not.
        widen = []
        if stride == 1:
            widen = [nn.Conv2d(width, out_width, 1)]
            width = out_width

        blocks = MaxxVitStage(
            width,
            out_width,
            block_types=block_kind,
            drop_path=stage_rates,
            stride=stride,
            depth=n_blocks,
            feat_size=(size, size),
        )
        model.add_module(name, nn.Sequential(*widen, blocks))
        width = out_width

    head = [LayerNorm2d(width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    model.add_module("head", nn.Sequential(*head))

    # As timm initialises its own CoAtNets; a stage by itself does not do so.
    for block in model.modules():
        if isinstance(block, MbConvBlock | TransformerBlock2d):
            block.init_weights("vit_eff")
    return model
