"""Commits that cannot change the memory of a step: documentation, refactors, harmless numbers.

Each edit touches text that no other edit of the demo touches, so that any of
them may come at any place of a history.
"""

from __future__ import annotations

from firstbad.demo.edits import Change, Edit, make_file


def _note(name: str, subject: str, text: str) -> Edit:
    return Edit(name=name, subject=subject, changes=(make_file(f"docs/{name}.md", text),))


DOCUMENTATION = (
    _note(
        "on-call",
        "Say who looks at a red night",
        "# On call\n\nWhoever merged last looks first. Write down what you saw before a restart.\n",
    ),
    _note(
        "glossary",
        "Start a glossary",
        "# Glossary\n\n* tap: a layer of the vision tower whose output goes into the decoder (deepstack)\n"
        "* merger: maps four patches to one image token\n* row: a token on its way to one of its experts\n",
    ),
    _note(
        "faq",
        "Answer what newcomers ask",
        "# Questions\n\n**Why three steps?** The second one is the first with optimizer states.\n\n"
        "**Why padding?** With one length for all, two nights can be compared.\n",
    ),
    _note(
        "hardware",
        "List where the night has run",
        "# Hardware\n\nOne device is enough. Two can share the experts: `expert_model_parallel_size`.\n",
    ),
    _note(
        "reviewing",
        "Write down what a reviewer asks",
        "# Reviewing\n\n1. Does it change what is kept for the backward pass?\n"
        "2. Does it change how many patches or rows there are?\n",
    ),
    _note(
        "releases",
        "Describe how we move a pin",
        "# Pins\n\nOne package a commit, with a link to its changes in the message.\n",
    ),
    Edit(
        name="readme-overrides",
        subject="Show an override that people ask for",
        changes=(
            Change(
                path="README.md",
                old="Any key of the recipe can be changed on the command line.",
                new="Any key of the recipe can be changed on the command line, "
                "e.g. `optimizer.lr=0.0001`; a key that does not exist is an error.",
            ),
        ),
    ),
    Edit(
        name="loss-note",
        subject="Explain how far the loss should fall",
        changes=(
            Change(
                path="docs/training.md",
                old="The loss must fall.",
                new="The loss must fall: from about 6.9 to 6.6 in three steps.",
            ),
        ),
    ),
    Edit(
        name="padding-note",
        subject="Say what padding costs",
        changes=(
            Change(
                path="docs/data.md",
                old="Samples are padded to the recipe's sequence length.",
                new="Samples are padded to the recipe's sequence length, and padding costs what text does.",
            ),
        ),
    ),
)

CODE = (
    Edit(
        name="learning-rate",
        subject="Halve the learning rate",
        why="The loss of the second step was higher than that of the first on two nights.",
        changes=(Change(path="recipes/nightly.py", old="lr=1e-3,", new="lr=5e-4,"),),
    ),
    Edit(
        name="minimum-learning-rate",
        subject="Lower the floor of the learning rate",
        changes=(Change(path="recipes/nightly.py", old="min_lr=1e-4,", new="min_lr=1e-5,"),),
    ),
    Edit(
        name="clipping",
        subject="Clip gradients at a half",
        changes=(Change(path="recipes/nightly.py", old="clip_grad=1.0,", new="clip_grad=0.5,"),),
    ),
    Edit(
        name="seed",
        subject="Use another seed",
        why="To see that the last weeks were not luck.",
        changes=(Change(path="recipes/nightly.py", old="RNGConfig(seed=1234)", new="RNGConfig(seed=2718)"),),
    ),
    Edit(
        name="parser-function",
        subject="Give the command line a function of its own",
        changes=(
            Change(
                path="train.py",
                old="def main() -> None:\n    parser =",
                new="def arguments() -> argparse.Namespace:\n    parser =",
            ),
            Change(
                path="train.py",
                old="    arguments = parser.parse_args()\n"
                '    config = importlib.import_module(f"recipes.{arguments.recipe}").config()\n'
                "    apply_overrides(config, arguments.overrides)\n",
                new="    return parser.parse_args()\n\n\ndef main() -> None:\n    given = arguments()\n"
                '    config = importlib.import_module(f"recipes.{given.recipe}").config()\n'
                "    apply_overrides(config, given.overrides)\n",
            ),
        ),
    ),
    Edit(
        name="override-split",
        subject="Refuse an override without a value in one place",
        changes=(
            Change(
                path="vlm/overrides.py",
                old='        key, separator, text = override.partition("=")\n        if not separator:\n',
                new='        key, _, text = override.partition("=")\n        if "=" not in override:\n',
            ),
        ),
    ),
    Edit(
        name="images-loop",
        subject="Read the images of a sample in a plain loop",
        changes=(
            Change(
                path="vlm/data.py",
                old="    return [\n"
                '        part["image"]\n'
                '        for turn in example["conversation"]\n'
                '        for part in turn["content"]\n'
                '        if part["type"] == "image"\n'
                "    ]\n",
                new="    found = []\n"
                '    for turn in example["conversation"]:\n'
                '        found += [part["image"] for part in turn["content"] if part["type"] == "image"]\n'
                "    return found\n",
            ),
        ),
    ),
    Edit(
        name="captions-function",
        subject="Move the tokenizer's text into a function",
        changes=(
            Change(
                path="vlm/data.py",
                old="def images_of(example",
                new="def texts_of(samples: list[dict[str, Any]]) -> list[str]:\n"
                '    """What is asked and answered in them: the text that the tokenizer is trained on."""\n'
                '    turns = [turn for sample in samples for turn in sample["conversation"]]\n'
                '    return [turn["content"][-1]["text"] for turn in turns]\n'
                "\n\ndef images_of(example",
            ),
            Change(
                path="vlm/data.py",
                old='        captions = [turn["content"][-1]["text"] '
                'for example in base for turn in example["conversation"]]\n',
                new="        captions = texts_of(base)\n",
            ),
        ),
    ),
    Edit(
        name="question",
        subject="Ask more plainly",
        changes=(
            Change(
                path="vlm/data.py",
                old='"What does the photograph show?"',
                new='"What is in the photograph?"',
            ),
        ),
    ),
    Edit(
        name="normalization",
        subject="Normalize images with the means of natural photographs",
        changes=(
            Change(
                path="vlm/processor.py",
                old="image_mean=[0.5] * 3,",
                new="image_mean=[0.48, 0.46, 0.41],",
            ),
        ),
    ),
    Edit(
        name="unused-tokens",
        subject="Name the first unused token id",
        changes=(
            Change(
                path="vlm/processor.py",
                old='    unused = [f"<|unused_{index}|>" for index in '
                "range(core.get_vocab_size(), model.VOCABULARY - 4)]\n",
                new="    first = core.get_vocab_size()\n"
                '    unused = [f"<|unused_{index}|>" for index in range(first, model.VOCABULARY - 4)]\n',
            ),
        ),
    ),
    Edit(
        name="architectures",
        subject="Name the architecture where the config is made",
        changes=(
            Change(
                path="vlm/model.py",
                old="        vision_end_token_id=VISION_END,\n    )\n"
                '    config.architectures = ["Qwen3VLMoeForConditionalGeneration"]\n    return config\n',
                new="        vision_end_token_id=VISION_END,\n"
                '        architectures=["Qwen3VLMoeForConditionalGeneration"],\n    )\n    return config\n',
            ),
        ),
    ),
    Edit(
        name="hook-name",
        subject="Call the router's hook what it is",
        changes=(
            Change(
                path="vlm/telemetry.py",
                old="module.register_forward_hook(_count_tokens(path))",
                new="module.register_forward_hook(_token_counter(path))",
            ),
            Change(
                path="vlm/telemetry.py",
                old="def _count_tokens(path: str):",
                new="def _token_counter(path: str):",
            ),
        ),
    ),
)
