"""Models of images and videos."""

from typing import Any

import torch
from torch import Tensor

from tests.support.architectures.batches import squared, text
from tests.support.architectures.hugging_face import LAYERS, images, made, texts
from tests.support.architectures.registry import WIDTH, WORDS, Built, register


def register_vision() -> None:
    """Adds models of images and videos."""
    vit: dict[str, Any] = LAYERS | dict(image_size=8, patch_size=4)
    beit: dict[str, Any] = dict(use_relative_position_bias=True, use_shared_relative_position_bias=False)
    for attention in ("eager", "sdpa"):
        register(
            f"ViT, {attention}",
            images("ViTForImageClassification", "ViTConfig", attention=attention, **vit),
        )
        register(
            f"BEiT, {attention}",
            images("BeitForImageClassification", "BeitConfig", attention=attention, **vit, **beit),
        )
    register("DeiT", images("DeiTForImageClassification", "DeiTConfig", **vit))
    register("DINOv2", images("Dinov2ForImageClassification", "Dinov2Config", mlp_ratio=2, **vit))
    swin: dict[str, Any] = dict(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4
    )
    register("Swin", images("SwinForImageClassification", "SwinConfig", size=16, **swin))
    register("Swin-v2", images("Swinv2ForImageClassification", "Swinv2Config", size=16, **swin))
    conv: dict[str, Any] = dict(hidden_sizes=[8, WIDTH], depths=[1, 1])
    register(
        "ConvNext", images("ConvNextForImageClassification", "ConvNextConfig", num_stages=2, size=16, **conv)
    )
    register(
        "ConvNext-v2",
        images("ConvNextV2ForImageClassification", "ConvNextV2Config", num_stages=2, size=16, **conv),
    )
    resnet: dict[str, Any] = dict(embedding_size=8, layer_type="basic", size=16, **conv)
    register("ResNet, frozen statistics", images("ResNetForImageClassification", "ResNetConfig", **resnet))
    register(
        "RegNet, frozen statistics",
        images(
            "RegNetForImageClassification", "RegNetConfig", embedding_size=8, groups_width=4, size=16, **conv
        ),
    )
    vision = "CLIPVisionModelWithProjection"
    register(
        "CLIP, images",
        images(vision, "CLIPVisionConfig", loss=squared(lambda o: o.image_embeds), projection_dim=8, **vit),
    )
    register(
        "SigLIP, images",
        images("SiglipVisionModel", "SiglipVisionConfig", loss=squared(lambda o: o.pooler_output), **vit),
    )
    register(
        "CLIP, texts",
        texts(
            "CLIPTextModelWithProjection",
            "CLIPTextConfig",
            loss=squared(lambda o: o.text_embeds),
            projection_dim=8,
            eos_token_id=2,
        ),
    )
    register("CLIP, pairs of a text and an image", clip_pairs)
    video: dict[str, Any] = dict(num_frames=4, frames=4, **vit)
    register("VideoMAE", images("VideoMAEForVideoClassification", "VideoMAEConfig", tubelet_size=2, **video))
    register(
        "TimeSformer",
        images("TimesformerForVideoClassification", "TimesformerConfig", **video),
        expected="takes the class tokens of all films from the frames of the first",
    )
    register("ViViT", images("VivitForVideoClassification", "VivitConfig", tubelet_size=[2, 4, 4], **video))
    segformer: dict[str, Any] = dict(
        size=32,
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, WIDTH],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=8,
    )
    register("SegFormer", images("SegformerForImageClassification", "SegformerConfig", **segformer))
    pixels = squared(lambda o: o.logits)
    register(
        "SegFormer, segmentation",
        images("SegformerForSemanticSegmentation", "SegformerConfig", loss=pixels, **segformer),
    )
    register("ViT-MAE, with its own noise", mae)
    register(
        "Perceiver, images",
        images("PerceiverForImageClassificationLearned", "PerceiverConfig", **perceiver()),
    )


def perceiver() -> dict[str, Any]:
    return dict(
        image_size=8,
        num_latents=4,
        d_latents=WIDTH,
        num_blocks=1,
        num_self_attends_per_block=1,
        num_self_attention_heads=2,
        num_cross_attention_heads=1,
        d_model=32,
    )


def clip_pairs(n: int) -> Built:
    """Makes a loss of the similarity between an example's text and its own image, without negatives."""
    part: dict[str, Any] = LAYERS | dict(num_hidden_layers=1)
    model = made(
        "CLIPModel",
        "CLIPConfig",
        text_config=part | dict(vocab_size=WORDS, max_position_embeddings=32, eos_token_id=2),
        vision_config=part | dict(image_size=8, patch_size=4),
        projection_dim=8,
    )

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        out = model(**batch)
        return 1 - (out.text_embeds * out.image_embeds).sum(1)

    return model, loss, text(n) | {"pixel_values": torch.randn(n, 3, 8, 8)}


def mae(n: int) -> Built:
    part: dict[str, Any] = LAYERS | dict(num_hidden_layers=1)
    model = made(
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        image_size=8,
        patch_size=2,
        **part,
        **{f"decoder_{name}": value for name, value in part.items()},
    )

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        out = model(**batch)
        target = model.patchify(batch["pixel_values"])
        return ((out.logits - target).square().mean(2) * out.mask).sum(1) / out.mask.sum(1)

    return model, loss, {"pixel_values": torch.randn(n, 3, 8, 8), "noise": torch.rand(n, 16)}
