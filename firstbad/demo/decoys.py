"""What misleads a bisection: each of these is undone some commits after it was made.

A run of two commits that do not import, a failure that is not the one looked
for, data that is silently not the real data, and vision memory that rises but
stays under the capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from firstbad.demo.edits import Change, Edit


class DecoyKind(StrEnum):
    BROKEN_IMPORT = "broken_import"  #: two adjacent commits whose modules do not import
    OTHER_FAILURE = "other_failure"  #: training fails in the data code, not for memory
    MOCK_DATA = "mock_data"  #: training goes on without the real photographs
    VISION_MEMORY = "vision_memory"  #: more vision memory, still under the capacity


@dataclass(frozen=True, kw_only=True)
class DecoyEdit:
    """A decoy and how it is taken back. ``clipped`` ones need photographs that ``max_pixels`` cuts down."""

    kind: DecoyKind
    edit: Edit
    undo_subject: str
    clipped: bool = False


_MOCK_CLASS = '''

@dataclass(kw_only=True)
class MockConversations(MockVLMConversationProvider):
    """Noise in the place of photographs: needs no package and no disk."""

    min_pixels: int
    max_pixels: int
    hf_processor_path: str = ""
    images_per_sample: int = 1

    def build_datasets(self, context: DatasetBuildContext):
        words = processor([self.prompt, "dummy assistant response"], self.min_pixels, self.max_pixels)
        training = VLMConversationDataset(
            base_examples=self._make_base_examples(),
            target_length=context.train_samples,
            processor=words,
            collate_impl=lambda batch, words: collate(batch, words, self.seq_length),
        )
        return training, None, None
'''

DECOYS = (
    DecoyEdit(
        kind=DecoyKind.BROKEN_IMPORT,
        edit=Edit(
            name="module-not-moved",
            subject="Rename vlm.processor to vlm.processing",
            changes=(
                Change(
                    path="vlm/data.py",
                    old="from vlm.processor import processor\n",
                    new="from vlm.processing import processor\n",
                ),
            ),
        ),
        undo_subject="Import the processor from where it is",
    ),
    DecoyEdit(
        kind=DecoyKind.BROKEN_IMPORT,
        edit=Edit(
            name="conflict-left-in",
            subject="Merge the recipe's dispatcher settings",
            changes=(
                Change(
                    path="recipes/nightly.py",
                    old='    provider.moe_token_dispatcher_type = "alltoall"\n',
                    new='<<<<<<< HEAD\n    provider.moe_token_dispatcher_type = "alltoall"\n=======\n'
                    '    provider.moe_token_dispatcher_type = "allgather"\n>>>>>>> dispatcher\n',
                ),
            ),
        ),
        undo_subject="Resolve the conflict that was committed",
    ),
    DecoyEdit(
        kind=DecoyKind.OTHER_FAILURE,
        edit=Edit(
            name="length-assertion",
            subject="Check that no sample is cut off",
            changes=(
                Change(
                    path="vlm/data.py",
                    old='    tokens = inputs["input_ids"]\n',
                    new='    tokens = inputs["input_ids"]\n'
                    "    padding = tokens == processor.tokenizer.pad_token_id\n"
                    '    assert not padding.any(), "a sample was cut off"\n',
                ),
            ),
        ),
        undo_subject="Drop a check that had it the wrong way round",
    ),
    DecoyEdit(
        kind=DecoyKind.OTHER_FAILURE,
        edit=Edit(
            name="ring-too-long",
            subject="Count the photographs once",
            changes=(
                Change(
                    path="vlm/data.py",
                    old="    count = len(photographs)\n",
                    new="    count = 8\n",
                ),
            ),
        ),
        undo_subject="Count the photographs that there are",
    ),
    DecoyEdit(
        kind=DecoyKind.MOCK_DATA,
        edit=Edit(
            name="text-only",
            subject="Do without images while the store is down",
            changes=(
                Change(
                    path="vlm/data.py",
                    old="found.append(conversation(images, chosen[0].caption))",
                    new="found.append(conversation([], chosen[0].caption))",
                ),
            ),
        ),
        undo_subject="Show the images again",
    ),
    DecoyEdit(
        kind=DecoyKind.MOCK_DATA,
        edit=Edit(
            name="noise",
            subject="Make the data provider a choice of the recipe",
            changes=(
                Change(
                    path="vlm/data.py",
                    old="vlm_datasets.token_utils import",
                    new="vlm_datasets.mock_provider import MockVLMConversationProvider\n"
                    "from megatron.bridge.data.vlm_datasets.token_utils import",
                ),
                Change(
                    path="vlm/data.py",
                    old="        return training, None, None\n",
                    new=f"        return training, None, None\n{_MOCK_CLASS}",
                ),
                Change(
                    path="recipes/nightly.py",
                    old="from vlm.data import PhotographConversations\n",
                    new="from vlm.data import MockConversations\n",
                ),
                Change(
                    path="recipes/nightly.py",
                    old="dataset=PhotographConversations(",
                    new="dataset=MockConversations(",
                ),
            ),
        ),
        undo_subject="Train on the photographs again",
    ),
    DecoyEdit(
        kind=DecoyKind.VISION_MEMORY,
        edit=Edit(
            name="slightly-more-pixels",
            subject="Leave the photographs a little larger",
            changes=(
                Change(path="recipes/nightly.py", old="max_pixels=288 * 288,", new="max_pixels=320 * 320,"),
            ),
        ),
        undo_subject="Scale the photographs down as before",
        clipped=True,
    ),
    DecoyEdit(
        kind=DecoyKind.VISION_MEMORY,
        edit=Edit(
            name="thumbnail",
            subject="Show a thumbnail beside the photograph",
            changes=(
                Change(
                    path="vlm/data.py",
                    old="        images = [photograph.image for photograph in chosen]\n",
                    new="        images = [photograph.image for photograph in chosen]\n"
                    "        images.append(chosen[0].image.resize((160, 160)))\n",
                ),
            ),
        ),
        undo_subject="Leave the thumbnail out: it did not help",
    ),
    DecoyEdit(
        kind=DecoyKind.VISION_MEMORY,
        edit=Edit(
            name="wider-vision-mlp",
            subject="Widen the vision tower's MLP a little",
            changes=(
                Change(
                    path="vlm/model.py",
                    old='    "hidden_size": 256,\n    "intermediate_size": 512,\n',
                    new='    "hidden_size": 256,\n    "intermediate_size": 640,\n',
                ),
            ),
        ),
        undo_subject="Give the vision tower its old MLP back",
    ),
)
