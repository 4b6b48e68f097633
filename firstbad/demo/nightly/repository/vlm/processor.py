"""The Qwen3-VL processor without a hub: a byte-level tokenizer trained on the captions, images only."""

from typing import ClassVar

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen2TokenizerFast
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.processing_utils import ProcessorMixin

from vlm import model

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
SPECIAL = {
    "<|image_pad|>": model.IMAGE_TOKEN,
    "<|video_pad|>": model.VIDEO_TOKEN,
    "<|vision_start|>": model.VISION_START,
    "<|vision_end|>": model.VISION_END,
}


class ImageProcessor(Qwen3VLProcessor):
    """Qwen3VLProcessor with its video half left out, which would need torchvision."""

    attributes: ClassVar[list[str]] = ["image_processor", "tokenizer"]

    def __init__(self, image_processor=None, tokenizer=None, chat_template=None):
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id, self.video_token_id = model.IMAGE_TOKEN, model.VIDEO_TOKEN


def tokenizer(captions: list[str]) -> Qwen2TokenizerFast:
    """A byte-level BPE whose last ids are the vision tokens, so that it fills the vocabulary exactly."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=model.VOCABULARY - 16,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    core.train_from_iterator(captions, trainer)
    unused = [f"<|unused_{index}|>" for index in range(core.get_vocab_size(), model.VOCABULARY - 4)]
    core.add_special_tokens([*unused, *SPECIAL])
    return Qwen2TokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def processor(captions: list[str], min_pixels: int, max_pixels: int) -> ImageProcessor:
    image_processor = Qwen2VLImageProcessor(
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return ImageProcessor(image_processor, tokenizer(captions), chat_template=CHAT_TEMPLATE)
